"""What processes send each other in a step of a training, before any has started. Pure; no torch.

Collectives are counted as rings send them: of a gathering or scattering of S bytes over n processes each sends
(n - 1) / n S, of an all-reduce twice that. A ring through all processes leaves each machine once, so that as much
leaves a machine as one process sends.
"""

from dataclasses import dataclass
from math import ceil

from distill.estimates.memory import MASTER_BYTES
from distill.estimates.trainings import Training


@dataclass(frozen=True)
class Traffic:
    """Bytes of one step that go through collectives of all processes.

    Attributes:
        processes: That take part.
        reduced: Added up over them, each holding all of it.
        gathered: Put together from their shards.
        scattered: Added up, each keeping a shard.
    """

    processes: int
    reduced: int = 0
    gathered: int = 0
    scattered: int = 0

    @property
    def sent(self) -> int:
        """Bytes that each process sends, and receives."""
        whole = 2 * self.reduced + self.gathered + self.scattered
        return whole * (self.processes - 1) // self.processes


def step_traffic(training: Training, processes: int) -> Traffic:
    """What a step of a training sends: gradients once, or under FSDP2 in every pass, and weights twice a pass.

    Sums of metrics and losses, some bytes, are not counted. The teacher is gathered in every pass where it is divided.
    """
    gradients = training.trained_parameters * MASTER_BYTES
    passes = num_passes(training, processes)
    teacher = gathered_teacher(training) * passes
    if not training.sharded:
        return Traffic(processes, reduced=gradients, gathered=teacher)
    item = 2 if training.precision == "amp_bf16" else 4
    weights = 2 * passes * training.student.parameters() * item
    return Traffic(processes, gathered=weights + teacher, scattered=passes * gradients)


def num_passes(training: Training, processes: int) -> int:
    """Forward passes of a process in a step; one where Composer finds the size of a micro-batch itself."""
    share = training.batch // processes
    return ceil(share / (training.microbatch or share))


def gathered_teacher(training: Training) -> int:
    """Bytes of a teacher that is divided, 0 of any other."""
    if training.teacher is None or not training.teacher_sharded:
        return 0
    return training.teacher.weight_bytes(training.teacher_dtype)

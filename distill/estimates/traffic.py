"""What processes send each other in a step of a training, before any has started. Pure; no torch.

Collectives are counted as rings send them: of a gathering or scattering of S bytes over n processes each sends
(n - 1) / n S, of an all-reduce twice that. A ring leaves each machine that it goes through once, so that as much leaves
a machine as one of its processes sends.
"""

from dataclasses import dataclass
from math import ceil
from typing import Literal

from distill.estimates.memory import MASTER_BYTES
from distill.estimates.trainings import Training

Kind = Literal["reduced", "gathered", "scattered"]  # added up and kept by all; put together; added up, each its shard


@dataclass(frozen=True)
class Collective:
    """What some processes do together in a step.

    Attributes:
        kind: Of it.
        size: Bytes that it is of.
        over: Processes of a ring.
        stride: From one of them to the next; as many rings there are beside each other.
    """

    kind: Kind
    size: int
    over: int
    stride: int = 1

    @property
    def sent(self) -> int:
        """Bytes that each process sends, and receives."""
        return (2 if self.kind == "reduced" else 1) * self.size * (self.over - 1) // self.over

    def out_of(self, of_node: int) -> int:
        """Bytes that leave a machine of so many processes, which follow each other."""
        if self.over * self.stride <= of_node:
            return 0
        return min(self.stride, of_node) * self.sent


@dataclass(frozen=True)
class Traffic:
    """All collectives of a step."""

    collectives: tuple[Collective, ...]

    def size(self, kind: Kind) -> int:
        return sum(each.size for each in self.collectives if each.kind == kind)

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self.collectives)

    def out_of(self, of_node: int) -> int:
        return sum(each.out_of(of_node) for each in self.collectives)


def step_traffic(training: Training, processes: int, degree: int | None = None) -> Traffic:
    """What a step of a training sends: gradients once, or in shards in every pass, and weights twice a pass.

    Sums of metrics and losses, some bytes, are not counted. A divided teacher is gathered in every pass.

    Args:
        training: Of which.
        processes: That share it.
        degree: Processes that one copy of the student is divided over, where that is not over all of them.
    """
    gradients, passes = training.trained_parameters * MASTER_BYTES, num_passes(training, processes)
    shards = (degree or processes) if training.sharded else 1
    found = []
    if shards > 1:
        item = 2 if training.precision == "amp_bf16" else 4
        weights = 2 * passes * training.student.parameters() * item
        found += [Collective("gathered", weights, shards), Collective("scattered", passes * gradients, shards)]
    if processes > shards:
        found.append(Collective("reduced", ceil(gradients / shards), processes // shards, stride=shards))
    if training.teacher is not None and training.teacher_sharded:
        weights = training.teacher.weight_bytes(training.teacher_dtype)
        found.append(Collective("gathered", passes * weights, processes))
    return Traffic(tuple(found))


def num_passes(training: Training, processes: int) -> int:
    """Forward passes of a process in a step; one where Composer finds the size of a micro-batch itself."""
    share = training.batch // processes
    return ceil(share / (training.microbatch or share))

"""The norm of all gradients before every step: logged, bounded, and the end of a training where it is not a number."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from composer import Algorithm, Event, Logger, State
from composer.utils import dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from architectures.errors import UserError
from distill.checkpoints.files import find_checkpoints

Parameters = Callable[[State], Iterable[nn.Parameter]]


class GradientNorm(Algorithm):
    """Acts once the gradients of all micro-batches are there, and before the step that uses them.

    Composer's own GradientClipping looks for FSDP1 modules when a model is sharded, and so leaves gradients under FSDP2
    as they are; torch's functions handle whole and sharded ones alike.

    A step with a gradient that is not finite would make every weight so, and the next checkpoint useless.

    Args:
        checkpoints: Folder of the training's checkpoints, for the message.
        threshold: Largest Euclidean norm of all gradients together: beyond it they are scaled down. None for no bound.
        parameters: Whose gradients count; the model's if left out.
        passes_over: Whether a step that is no number is left out and told, and the training goes on: where it serves
            requests meanwhile.
    """

    def __init__(
        self,
        checkpoints: Path,
        threshold: float | None,
        parameters: Parameters | None = None,
        *,
        passes_over: bool = False,
    ):
        self.passes_over = passes_over
        self.checkpoints = checkpoints
        self.threshold = threshold
        self.parameters = parameters or (lambda state: state.model.parameters())

    def match(self, event: Event, state: State) -> bool:  # noqa: ARG002  # Composer's signature
        """After the gradients of all micro-batches are there."""
        return event == Event.AFTER_TRAIN_BATCH

    def apply(self, event: Event, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Measure, refuse or pass over, log, clip.

        Raises:
            UserError: On all processes, if the norm is not finite and such steps are not passed over.
        """
        parameters = [parameter for parameter in self.parameters(state) if parameter.grad is not None]
        norm = total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        if not torch.isfinite(norm):
            if not self.passes_over:
                raise UserError(explain_norm(float(norm), state.timestamp.batch.value, self.checkpoints))
            leave_out(parameters, float(norm), state.timestamp.batch.value)
            return
        logger.log_metrics({"l2_norm/grad/global": float(norm)})
        if self.threshold is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.threshold, norm)


def leave_out(parameters: Iterable[nn.Parameter], norm: float, batch: int) -> None:
    """Have the coming step move nothing, and say so once."""
    for parameter in parameters:
        parameter.grad = None
    if dist.get_global_rank() == 0:
        print(f"batch {batch}: its gradients have norm {norm}. Nothing is learned from it.", file=sys.stderr)


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Euclidean norm of all gradients together, over all their shards; scalar."""
    norm = nn.utils.get_total_norm(list(gradients))
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def explain_norm(norm: float, batch: int, checkpoints: Path) -> str:
    """The message for gradients that are no numbers, with what can still be used."""
    usable = find_checkpoints(checkpoints)
    earlier = f"{usable[-1]} stays usable" if usable else "there is no checkpoint yet"
    return (
        f"The gradients of batch {batch} have norm {norm}: the loss has left the numbers. Nothing was learned from it, "
        f"and {earlier}. The same command would end here again: lower the learning rate, bound the gradients, or "
        "choose precision fp32, and train under another run_name."
    )

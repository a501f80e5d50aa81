"""Between which bounds acceptance lies while a draft learns from a top-k cache.

Shape suffixes used in this file:
    C = some answer tokens, one row each; V = vocabulary entries
"""

import torch
from composer import Callback, Event, Logger, State
from composer.utils import create_interval_scheduler, dist
from torch import Tensor

from distill.formulas.sparse import alpha_bounds
from distill.losses.objective import TeacherOutput
from distill.training.model import DistillModel


class AlphaBounds(Callback):
    """Logs `metrics/train/alpha_low` and `metrics/train/alpha_high` of a batch from time to time.

    Of a student with a small head they are called `kept_alpha_low` and `kept_alpha_high`: bounds of Σ min(p, q) with p
    the teacher given that it says one of the student's ids, over the tokens that are trained on. The true alpha is at
    most that, and at the other tokens nothing is computed.

    That is of the first batch of a session, and of the batch that follows each line on the console. They are means over
    the batch's answer tokens, before it is learned, from the logits its loss is made of: one more pass over these, and
    no further pass of the student.

    Args:
        model: Whose loss is watched; it learns from a top-k cache.
        interval: Time between console lines, as a Composer time string.
    """

    def __init__(self, model: DistillModel, *, interval: str):
        self.model = model
        self.is_due = create_interval_scheduler(interval, checkpoint_events=False)
        self.sums = torch.zeros(3)  # of the least alpha, of the greatest, and of tokens

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        self.begin()

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Log what was watched, beside the batch's loss."""
        if self.model.watch is None:
            return
        self.model.watch = None
        sums = state.device.tensor_to_device(self.sums)
        dist.all_reduce(sums)
        low, high, num_tokens = sums.tolist()
        if num_tokens:  # none where the loss asks for no teacher
            name = "alpha" if self.model.ids_K is None else "kept_alpha"
            bounds = {f"{name}_low": low / num_tokens, f"{name}_high": high / num_tokens}
            logger.log_metrics({f"metrics/train/{name}": value for name, value in bounds.items()})

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Watch the next batch if a line is due now."""
        if self.is_due(state, Event.BATCH_END):
            self.begin()

    def epoch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Watch the next batch where lines are due by epoch."""
        if self.is_due(state, Event.EPOCH_END):
            self.begin()

    def begin(self) -> None:
        self.sums = torch.zeros(3)
        self.model.watch = self.add

    @torch.no_grad()
    def add(self, student_CV: Tensor, output: TeacherOutput) -> None:
        assert not isinstance(output, Tensor), "of a top-k cache"
        low_C, high_C = alpha_bounds(student_CV, output["ids"], output["log_probs"], output["log_tail"])
        bounds = torch.stack([low_C.sum(), high_C.sum(), low_C.new_tensor(len(low_C))])
        self.sums = self.sums.to(bounds.device) + bounds

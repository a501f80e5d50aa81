"""Training on text: batches of documents that do not attend to each other, and dynamic domain weights.

A batch is that of distill/data/batches.py without `task`: {"input_ids": ids_BT, "attention_mask": real_BT, "keep":
keep_BT, "next_ids": next_BT}, T one less than the tokens of a sequence, without padding. It also has `position_ids`,
positions_BT, which restart at 0 with every document, and `keep` is False at the last token of a document, which does
not predict the next one. A document ends with the tokenizer's end-of-sequence token.

Shape suffixes used in this file:
    B = sequences in the batch
    T = tokens per sequence
    H = hidden width
    V = vocabulary entries
    A = trained positions, of all sequences together
    C = some of these
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, isinf
from typing import Any, cast

import torch
from composer import Callback, DataSpec, Event, Logger, State
from composer.utils import dist, reproducibility
from composer.utils.misc import create_interval_scheduler
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from architectures.errors import UserError
from distill.checkpoints.saving import agreed
from distill.chunked_loss import Head, learned, map_rows
from distill.losses import cross_entropy
from distill.model import Batch, DistillModel
from distill.recipe.sections import TextConfig, split_time
from distill.response_batches import count_tokens, cut_padding, split_batch
from distill.run import Run
from distill.teacher import AbsentTeacher, TeacherRows
from distill.text_data import RULES, MixedDomains, text_eval_loaders, text_loader
from eval.models import load_tokenizer

Losses = Mapping[str, float]
LossesOfRows = Callable[[Mapping[str, Tensor]], Sequence[Tensor]]  # from a batch to the nats of each sequence's tokens


@dataclass(eq=False)
class DynamicLoading(Callback):
    """Measures the held-out loss of every domain at each interval and updates the weights by the recipe's rule.

    Acts at the end of a batch, before Composer evaluates and saves, so a checkpoint holds the weights of the next
    batch. The weights are saved with the dataset.

    Args:
        measure: Computes the held-out loss of each domain in nats per token; called on all processes.
        references: As `reference_losses` returns them.
        rates: Recipe key to lower if a loss is not finite.
    """

    domains: MixedDomains
    measure: Callable[[State], Losses]
    rule: str
    update_interval: str
    references: Losses
    rates: str
    history: list[dict[str, Any]] = field(default_factory=list)  # of every update: batch, losses, weights after it

    def __post_init__(self) -> None:
        self.is_due = create_interval_scheduler(
            self.update_interval, include_end_of_training=False, checkpoint_events=False
        )

    def batch_end(self, state: State, logger: Logger) -> None:
        if self.is_due(state, Event.BATCH_END):
            self.update(state, logger)

    def update(self, state: State, logger: Logger) -> None:
        """Measure, set rank 0's weights on all ranks, and log; raise UserError if a loss is not finite."""
        names, batch = self.domains.names, int(state.timestamp.batch)
        measured = self.measure(state)
        for name in names:
            if not math.isfinite(measured[name]):
                raise UserError(
                    f"The held-out loss of text domain {name} is {measured[name]} after {batch} batches: training "
                    f"diverged. Lower {self.rates}."
                )
        losses, references = ([each[name] for name in names] for each in (measured, self.references))
        weights = agreed(RULES[self.rule](self.domains.weights, losses, references))
        self.domains.weights = weights
        self.history.append({"batch": batch, "losses": losses, "weights": weights})
        for name, loss, weight in zip(names, losses, weights, strict=True):
            logger.log_metrics(
                {
                    f"mixture/{name}/loss": loss,
                    f"mixture/{name}/weight": weight,
                    f"mixture/{name}/sequences": self.domains.num_used[name],
                }
            )

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = list(state["history"])


class RandomStateOnResume(Callback):
    """Restores every process's random state before the first batch of a resumed training run.

    Composer restores it only at the start of an epoch or after batches it skipped itself. With a dataset that keeps
    its own position, in the middle of an endless epoch, it does neither (Trainer._train_loop, mosaicml 0.32.1).
    """

    def __init__(self) -> None:
        self.loaded: list[dict[str, Any]] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the random states of all processes; a collective call."""
        return {"rng": reproducibility.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["rng"]

    def batch_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        if self.loaded is not None:
            reproducibility.load_rng_state(self.loaded)
            self.loaded = None


def reference_losses(config: TextConfig, measure: Callable[[], Losses]) -> dict[str, float]:
    """Return the reference loss of each domain: the recipe's, else that of the model the student is pruned from.

    Args:
        measure: Computes that model's losses; called on all processes, and only if the recipe leaves one out.

    Returns:
        Nats per token; infinite if the recipe gives none and the rule is fixed.
    """
    given = {domain.name: domain.reference_loss_nats for domain in config.domains}
    if config.mixture == "fixed":  # needs no references
        return {name: math.inf if loss is None else loss for name, loss in given.items()}
    measured = measure() if None in given.values() else {}
    return {name: measured[name] if loss is None else loss for name, loss in given.items()}


def held_out_losses(
    logits_of: Callable[[Tensor], Tensor], loaders: Mapping[str, DataLoader[Any]], *, device: torch.device
) -> dict[str, float]:
    """Return the mean loss of each domain over the held-out sequences of all processes, in nats per token.

    `logits_of` maps ids_BT to logits_BTV, of a model in evaluation mode.
    """

    def losses_of(batch: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return next_token_nll(logits_of(batch["input_ids"]), batch["input_ids"]).unbind()

    return {name: held_out_loss(losses_of, loader, device=device) for name, loader in loaders.items()}


@torch.no_grad()
def held_out_loss(losses_of: LossesOfRows, loader: DataLoader[Any], *, device: torch.device) -> float:
    """Return the mean held-out loss of one domain on all processes, in nats per token.

    Every process calls the model equally often, as a sharded one requires; the losses of repeats are dropped. Infinite
    if no token has a loss, as with a head that can output none of them.
    """
    num_own = len(range(dist.get_global_rank(), len(loader.dataset), dist.get_world_size()))  # pyright: ignore[reportArgumentType]  # a sized dataset
    sum_and_tokens = torch.zeros(2, dtype=torch.float64)
    for batch in loader:
        rows = losses_of({name: tensor.to(device) for name, tensor in batch.items()})
        for nll_T in rows[: max(0, num_own)]:
            sum_and_tokens += torch.tensor([nll_T.sum(dtype=torch.float64).item(), nll_T.numel()])
        num_own -= len(rows)
    sum_and_tokens = sum_and_tokens.to(device)
    dist.all_reduce(sum_and_tokens)
    loss_sum, num_tokens = sum_and_tokens.tolist()
    return loss_sum / num_tokens if num_tokens else math.inf


def next_token_nll(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """Return -log p of every token but the first, in float32; one position fewer than T."""
    return functional.cross_entropy(logits_BTV[:, :-1].float().transpose(1, 2), ids_BT[:, 1:], reduction="none")


def text_training(
    run: Run, model: DistillModel, *, batch_size: int, device: torch.device
) -> tuple[DataSpec, list[Callback]]:
    """Return this process's batches of the recipe's text, and callbacks for domain weights and random states.

    Call before a checkpoint is loaded. A reference loss that the recipe leaves out is the teacher's.

    Raises:
        UserError: If a text cannot be read, or is too short.
    """
    config, text, tokenizer = run.recipe.distill, run.recipe.text, load_tokenizer(run.init.path)
    assert text is not None  # required for training on text
    collate = partial(collate_text, end_id=cast("int", tokenizer.eos_token_id))
    place = {"rank": dist.get_global_rank(), "size": dist.get_world_size()}
    loader, domains = text_loader(
        text, tokenizer, batch_size=batch_size, seed=run.recipe.seed, collate=collate, **place
    )
    held_out = text_eval_loaders(text, tokenizer, batch_size=config.device_eval_batch_size, collate=collate)

    # Held-out losses of student and teacher, which set the mixture.
    def measure(losses_of: Callable[[DistillModel, Batch], Sequence[Tensor]]) -> dict[str, float]:
        of_model = partial(losses_of, model)
        losses = {name: held_out_loss(of_model, each, device=device) for name, each in held_out.items()}
        unsaid = [name for name, loss in losses.items() if isinf(loss)]
        if unsaid:
            raise UserError(
                f"text.domains: the draft's head outputs none of the held-out tokens of {', '.join(unsaid)}, whose "
                "losses set the mixture. Remove them, or set architecture.vocabulary.from to text."
            )
        return losses

    def measure_student(_: State) -> dict[str, float]:
        model.eval()
        with model.clock.phase("evaluation"):
            losses = measure(student_losses)
        model.train()
        return losses

    mixture = DynamicLoading(
        domains,
        measure_student,
        rule=text.mixture,
        update_interval=without_dur(text.update_interval, config.max_duration),
        references=reference_losses(text, lambda: measure(teacher_losses)),
        rates="distill.optimizer.lr",
    )
    data = DataSpec(
        loader,
        split_batch=split_batch,  # pyright: ignore[reportArgumentType]  # as in distill/data/batches.py
        microbatch_transforms=cut_padding,
        get_num_tokens_in_batch=count_tokens,  # pyright: ignore[reportArgumentType]
    )
    return data, [mixture, RandomStateOnResume()]


def collate_text(samples: Sequence[Mapping[str, Any]], *, end_id: int) -> dict[str, Tensor]:
    """Collate sequences of equal length, whose documents, each ended by end_id, do not attend to each other."""
    ids_BT = torch.stack([sample["input_ids"] for sample in samples])
    input_ids_BT = ids_BT[:, :-1].contiguous()
    is_end_BT = input_ids_BT == end_id

    # Positions: the number of earlier tokens of the same document and row. Each end starts a new document.
    positions_T = torch.arange(is_end_BT.shape[1])
    starts_BT = positions_T.where(is_end_BT.roll(1, dims=1), 0)
    return {
        "input_ids": input_ids_BT,
        "attention_mask": torch.ones_like(is_end_BT),
        "keep": ~is_end_BT,
        "next_ids": ids_BT[:, 1:].contiguous(),
        "position_ids": positions_T - starts_BT.cummax(dim=1).values,
    }


def student_losses(model: DistillModel, batch: Batch) -> Sequence[Tensor]:
    """Return -log q per sequence of its tokens under the student, in nats; leave out tokens that its head lacks."""
    batch = learned(batch, model.ids_K)
    return model.read(batch, partial(token_losses, batch=batch, rows=model.rows)).split(
        batch["keep"].sum(dim=1).tolist()
    )


def teacher_losses(model: DistillModel, batch: Batch) -> Sequence[Tensor]:
    """Return -log p per sequence of the same tokens under the teacher, conditioned on the student's ids, in nats."""
    assert not isinstance(model.teacher, AbsentTeacher), "without a teacher the recipe has every reference loss"
    batch = learned(batch, model.ids_K)
    rows = model.teacher.rows(batch, vocab_size=model.vocab_size, ids_K=model.ids_K)
    assert isinstance(rows, TeacherRows), "text has a live teacher"
    losses_A = token_losses(rows.hidden_AH, rows.head, batch=batch, rows=model.rows)
    return losses_A.split(batch["keep"].sum(dim=1).tolist())


def token_losses(hidden_AH: Tensor, head: Head, *, batch: Batch, rows: int) -> Tensor:
    """Return losses_A of the trained positions, in chunks of logits over the first `rows` ids of the head."""
    next_ids_A = batch["next_ids"][batch["keep"]]

    def of_rows(logits_CV: Tensor, chunk: slice) -> Tensor:
        return cross_entropy(logits_CV, next_ids_A[chunk])

    return map_rows(hidden_AH, head.narrowed(rows), of_rows)


def without_dur(time: str, max_duration: str) -> str:
    """Convert a share of training to max_duration's unit, rounded up as Composer does.

    Composer resolves shares by the length of the data, and text has no end.
    """
    (value, unit), (total, unit_of_training) = split_time(time), split_time(max_duration)
    return f"{ceil(value * total)}{unit_of_training}" if unit == "dur" else time

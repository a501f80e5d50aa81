"""Text as what a student learns from: batches in which documents do not see each other, and the mixture they follow.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, H = hidden width, V = vocabulary entries
    A = positions that are learned, of all sequences together, C = some of these

A batch is that of distill/data/batches.py without `task`: {"input_ids": ids_BT, "attention_mask": real_BT,
"keep": keep_BT, "next_ids": next_BT}, T one less than the tokens of a sequence, all of them real. Where documents are
isolated there is `position_ids`, positions_BT, which begin again at 0 with every document, and `keep` is False where a
document ends: what comes next says nothing about it. A document ends with the tokenizer's end-of-sequence token.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, isinf
from typing import Any, cast

import torch
from composer import Callback, DataSpec, State
from composer.utils import dist
from torch import Tensor
from torch.utils.data import DataLoader

from architectures.errors import UserError
from distill.formulas.dense import cross_entropy
from distill.losses.chunked import Head, map_rows
from distill.losses.kept_rows import learned
from distill.recipe.sections.text import TextConfig
from distill.recipe.sections.times import split_time
from distill.run.run import Run
from distill.teacher import AbsentTeacher, TeacherRows
from distill.text.dynamic_loading import DynamicLoading, RandomStateOnResume, held_out_loss, reference_losses
from distill.text.mixture import MixedDomains, text_eval_loaders, text_loader
from distill.training.batches import count_tokens, cut_padding, split_batch
from distill.training.model import Batch, DistillModel
from eval.models.loading import load_tokenizer

RATES = "distill.optimizer.lr"


def text_training(
    run: Run, model: DistillModel, *, batch_size: int, device: torch.device
) -> tuple[DataSpec, list[Callback]]:
    """This process's batches of the recipe's text, and what continues them and moves the share of each domain.

    Call before a checkpoint is loaded. A reference loss that the recipe leaves out is the teacher's own.

    Args:
        run: Whose recipe has a section text; the tokenizer is that of <run>/init.
        model: The student is measured, and the teacher where references are left out.
        batch_size: Sequences per batch of this process.
        device: The student trains on.

    Raises:
        UserError: If a text cannot be read, or is too short.
    """
    config, text, tokenizer = run.recipe.distill, run.recipe.text, load_tokenizer(run.init.path)
    assert text is not None  # whoever trains on text has some
    end_id = cast("int", tokenizer.eos_token_id)
    collate, place = (
        partial(collate_text, end_id=end_id),
        {"rank": dist.get_global_rank(), "size": dist.get_world_size()},
    )
    loader, domains = text_loader(
        text, tokenizer, batch_size=batch_size, seed=run.recipe.seed, collate=collate, **place
    )
    held_out = text_eval_loaders(text, tokenizer, batch_size=config.device_eval_batch_size, collate=collate)

    mixture = build_mixture(text, model, domains, held_out, max_duration=config.max_duration, device=device)
    data = DataSpec(
        loader,
        split_batch=split_batch,  # pyright: ignore[reportArgumentType]  # as in distill/data/batches.py
        microbatch_transforms=cut_padding,
        get_num_tokens_in_batch=count_tokens,  # pyright: ignore[reportArgumentType]
    )
    return data, [mixture, RandomStateOnResume()]


def build_mixture(
    text: TextConfig,
    model: DistillModel,
    domains: MixedDomains,
    held_out: Mapping[str, DataLoader[Any]],
    *,
    max_duration: str,
    device: torch.device,
) -> DynamicLoading:
    """What moves the share of each domain by the student's held-out losses."""

    def measure(losses_of: Callable[[DistillModel, Batch], Sequence[Tensor]]) -> dict[str, float]:
        losses = {
            name: held_out_loss(partial(losses_of, model), each, device=device) for name, each in held_out.items()
        }
        refuse_unsaid(losses)
        return losses

    def measure_student(_: State) -> dict[str, float]:
        model.eval()
        with model.clock.phase("evaluation"):
            losses = measure(student_losses)
        model.train()
        return losses

    return DynamicLoading(
        domains,
        measure_student,
        rule=text.mixture,
        update_interval=without_dur(text.update_interval, max_duration),
        references=reference_losses(text, lambda: measure(teacher_losses)),
        rates=RATES,
    )


def refuse_unsaid(losses: Mapping[str, float]) -> None:
    """Raise UserError naming the domains of whose held-out tokens the draft's head can say none."""
    unsaid = [name for name, loss in losses.items() if isinf(loss)]
    if unsaid:
        raise UserError(
            f"text.domains: of the held-out tokens of {', '.join(unsaid)} the draft's head can say none, and their "
            "losses are what the mixture follows. Leave them out, or count the ids of architecture.vocabulary in text."
        )


def collate_text(samples: Sequence[Mapping[str, Any]], *, end_id: int) -> dict[str, Tensor]:
    """One batch of sequences of one length, whose documents, each ended by end_id, do not see each other."""
    ids_BT = torch.stack([sample["input_ids"] for sample in samples])
    input_ids_BT = ids_BT[:, :-1].contiguous()
    is_end_BT = input_ids_BT == end_id
    return {
        "input_ids": input_ids_BT,
        "attention_mask": torch.ones_like(is_end_BT),
        "keep": ~is_end_BT,
        "next_ids": ids_BT[:, 1:].contiguous(),
        "position_ids": positions_in_documents(is_end_BT),
    }


def positions_in_documents(is_end_BT: Tensor) -> Tensor:
    """positions_BT: how many tokens of the same document and row stand before each. After an end comes a document."""
    positions_T = torch.arange(is_end_BT.shape[1])
    starts_BT = positions_T.where(is_end_BT.roll(1, dims=1), 0)
    return positions_T - starts_BT.cummax(dim=1).values


def student_losses(model: DistillModel, batch: Batch) -> Sequence[Tensor]:
    """Of each sequence, -log q of its tokens under the student, nats; those that a small head cannot say left out."""
    batch = learned(batch, model.ids_K)
    return model.read(batch, partial(token_losses, batch=batch, rows=model.rows)).split(
        batch["keep"].sum(dim=1).tolist()
    )


def teacher_losses(model: DistillModel, batch: Batch) -> Sequence[Tensor]:
    """Of each sequence, -log p of the same tokens under the teacher given that it says one of the same ids, nats."""
    assert not isinstance(model.teacher, AbsentTeacher), "without a teacher the recipe gives every reference"
    batch = learned(batch, model.ids_K)
    rows = model.teacher.rows(batch, vocab_size=model.vocab_size, ids_K=model.ids_K)
    assert isinstance(rows, TeacherRows), "text has a live teacher"
    losses_A = token_losses(rows.hidden_AH, rows.head, batch=batch, rows=model.rows)
    return losses_A.split(batch["keep"].sum(dim=1).tolist())


def token_losses(hidden_AH: Tensor, head: Head, *, batch: Batch, rows: int) -> Tensor:
    """losses_A of the learned positions, from chunks of logits over so many rows of the head."""
    next_ids_A = batch["next_ids"][batch["keep"]]

    def of_rows(logits_CV: Tensor, chunk: slice) -> Tensor:
        return cross_entropy(logits_CV, next_ids_A[chunk])

    return map_rows(hidden_AH, head.narrowed(rows), of_rows)


def without_dur(time: str, max_duration: str) -> str:
    """A time in the unit of the training if it was a share of it, rounded up as Composer rounds it.

    Of a share Composer asks how long the data is, and text has no end.
    """
    (value, unit), (total, unit_of_training) = split_time(time), split_time(max_duration)
    return f"{ceil(value * total)}{unit_of_training}" if unit == "dur" else time

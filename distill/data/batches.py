"""Responses as right-padded batches of token ids that mark the trained positions.

A batch is {"input_ids": ids_BT, "attention_mask": real_BT, "keep": keep_BT, "next_ids": next_BT}. `keep` is True at
positions that predict a response token: from the last token before the response to its second-to-last token.
`next_ids` is the token after each position. `task` is task_B1, the index of each prompt's task among the dataset's
tasks. `prompt_len` is prompt_len_B1, the tokens before the first response, which the encoder of an encoder-decoder
model reads; its decoder then reads a start token in place of the last of them.

With `distill.unknown_inputs` the student reads one unknown id in place of some ids that it cannot output; the teacher
reads the real ones, and so does the student in evaluation. The choice depends only on the seed, the batch number and
the sequence: not on processes, micro-batches, padding or interruptions.

Shape suffixes used in this file:
    B = sequences in the batch
    T = tokens of the longest sequence in it
    R = rows
    W = slots per row
    N = query heads
    V = vocabulary entries of the target
"""

import heapq
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from composer import Algorithm, Event, Logger, State
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.vocabulary import DraftVocabulary
from eval.responses import Trace, continues

PAD_ID = 0  # any id will do: padding is neither attended to nor trained on


@dataclass(frozen=True)
class Example:
    """One training sequence: a prompt with a response, or a conversation with several responses."""

    input_ids: tuple[int, ...]  # all tokens but the last, which predicts nothing
    last_id: int  # that last token, of the last response
    spans: tuple[tuple[int, int], ...]  # (first, end) of the positions that predict each response, in order
    task: int = 0  # index of the prompt's task among the dataset's tasks
    begins: int = 0  # tokens before the first response, if the first span begins later; else 0

    @property
    def num_kept(self) -> int:
        """Number of response tokens, which equals that of trained positions."""
        return sum(end - first for first, end in self.spans)

    @property
    def prompt_len(self) -> int:
        return self.begins or (self.spans[0][0] + 1 if self.spans else len(self.input_ids))

    @cached_property
    def all_ids_T(self) -> Tensor:  # noqa: N802  # a shape
        """All tokens, cached: converting a tuple takes longer than laying out a batch."""
        return torch.tensor([*self.input_ids, self.last_id])

    @property
    def response_ids(self) -> Iterator[int]:
        ids = (*self.input_ids, self.last_id)
        return (token for first, end in self.spans for token in ids[first + 1 : end + 1])


@dataclass(frozen=True)
class LengthCounts:
    """Effects of the length limit."""

    responses: int  # trained on
    response_tokens: int  # of those
    cut: int  # truncated responses, included in `responses`
    left_out: int  # prompts that leave no space for a response


class ResponseDataset(Dataset[Example]):
    """Prompts with responses, at most max_seq_len tokens each."""

    def __init__(self, traces: Sequence[Trace], *, max_seq_len: int):
        self.examples: list[Example] = []
        self.tasks = tuple(sorted({task_of(trace.source) for trace in traces}))
        num_cut = 0
        for trace in traces:
            free_tokens = max_seq_len - len(trace.prompt_ids)
            if free_tokens < 1:
                continue
            response_ids = trace.response_ids[:free_tokens]
            num_cut += len(response_ids) < len(trace.response_ids)
            *input_ids, last_id = (*trace.prompt_ids, *response_ids)
            span = (len(trace.prompt_ids) - 1, len(input_ids))
            task = self.tasks.index(task_of(trace.source))
            self.examples.append(Example(tuple(input_ids), last_id, (span,), task=task))
        self.counts = LengthCounts(
            responses=len(self.examples),
            response_tokens=sum(example.num_kept for example in self.examples),
            cut=num_cut,
            left_out=len(traces) - len(self.examples),
        )

    @classmethod
    def of_conversations(cls, traces: Sequence[Trace], *, max_seq_len: int) -> "ResponseDataset":
        """Build a dataset in which the turns of a conversation share a sequence if each continues the one before."""
        dataset = cls(traces, max_seq_len=max_seq_len)
        dataset.examples = join_turns(dataset.examples)
        return dataset

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    @staticmethod
    def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
        return collate(examples)


def join_turns(examples: Sequence[Example]) -> list[Example]:
    """Merge each example that begins with all of the one before it into that one.

    Every response token is predicted once, after exactly the same tokens as before. A turn whose template renders
    earlier turns differently begins a new sequence.
    """
    joined: list[Example] = []
    for example in examples:
        spans = example.spans
        if joined and continues((*joined[-1].input_ids, joined[-1].last_id), example.input_ids):
            spans = (*joined.pop().spans, *spans)
        joined.append(replace(example, spans=spans))
    return joined


def task_of(source: str) -> str:
    """Return the file or data set of a prompt's row: "gsm8k" of "a/gsm8k.jsonl:3" and of "gsm8k[test]:3"."""
    path = PurePath(source.rsplit(":", 1)[0].split("[", 1)[0])
    return path.name.split(".")[0] if path.suffix else "-".join(path.parts)


def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
    lengths_B1 = torch.tensor([[len(example.input_ids)] for example in examples])
    positions_T = torch.arange(int(lengths_B1.max()))
    real_BT = positions_T < lengths_B1
    return {
        "input_ids": padded([example.all_ids_T[:-1] for example in examples]),
        "attention_mask": real_BT,
        "keep": marked([example.spans for example in examples], width=len(positions_T)),
        "next_ids": padded([example.all_ids_T[1:] for example in examples]),
        "task": torch.tensor([[example.task] for example in examples]),
        "prompt_len": torch.tensor([[example.prompt_len] for example in examples]),
    }


def marked(spans: Sequence[Sequence[tuple[int, int]]], *, width: int) -> Tensor:
    keep_BT = torch.zeros(len(spans), width, dtype=torch.bool)
    for keep_T, of_sequence in zip(keep_BT, spans, strict=True):
        for first, end in of_sequence:
            keep_T[first:end] = True
    return keep_BT


def padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=PAD_ID)


@dataclass(frozen=True)
class Layout:
    """Positions of sequences in packed rows.

    Attributes:
        lengths: Tokens of each sequence.
        rows: Row of each sequence.
        starts: Slot of each sequence's first token in its row.
        num_rows: R.
        width: W, the tokens of the fullest row, rounded up to a multiple.
    """

    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    starts: tuple[int, ...]
    num_rows: int
    width: int


def balanced_layout(lengths: Sequence[int], num_rows: int, multiple: int = 1) -> Layout:
    """Pack sequences, longest first, each at the end of the row with the fewest tokens; ties go to the first row.

    Source: Graham 1969, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal on Applied Mathematics 17(2): the
    fullest row is at most 4/3 of the optimum. The row width is rounded up to `multiple`.
    """
    filled = [(0, row) for row in range(num_rows)]  # already a heap
    positions = [(0, 0)] * len(lengths)
    for sequence in sorted(range(len(lengths)), key=lambda sequence: -lengths[sequence]):
        start, row = heapq.heappop(filled)
        positions[sequence] = row, start
        heapq.heappush(filled, (start + lengths[sequence], row))
    rows, starts = zip(*positions, strict=True)
    width = -(-max(tokens for tokens, _ in filled) // multiple) * multiple
    return Layout(tuple(lengths), rows, starts, num_rows, width)


def cheapest_layout(
    lengths: Sequence[int], padded_width: int, *, flops_per_token: Callable[[int], int], multiple: int = 1
) -> Layout | None:
    """Return the balanced layout with the fewest FLOPs; None if padding every sequence to padded_width needs no more.

    Rows of one sequence need no mask, and causal attention skips half of the scores. A row of several sequences has a
    mask, and each slot attends to the whole row: that is why one long row is seldom the cheapest.

    Args:
        padded_width: Slots of a row that holds one sequence.
        flops_per_token: FLOPs of one token as a function of the number of attended slots.
    """
    best, least = None, len(lengths) * padded_width * flops_per_token((padded_width + 1) // 2)
    for num_rows in range(1, len(lengths) + 1):
        layout = balanced_layout(lengths, num_rows, multiple)
        flops = num_rows * layout.width * flops_per_token(layout.width)
        if flops < least:
            best, least = layout, flops
    return best


def lengths_read(keep_BT: Tensor) -> list[int]:
    """Return the tokens of each sequence up to its last kept position, at least 1: none attends to later ones."""
    positions_T = torch.arange(1, keep_BT.shape[1] + 1, device=keep_BT.device)
    return (keep_BT * positions_T).amax(dim=1).clamp(min=1).tolist()


def slots_of(layout: Layout, padded_width: int, device: torch.device) -> Tensor:
    """Return slots_BT: the index of each token in the flattened rows, or -1 if it is in none."""
    starts = [row * layout.width + start for row, start in zip(layout.rows, layout.starts, strict=True)]
    starts_B1, lengths_B1 = (torch.tensor(each, device=device)[:, None] for each in (starts, layout.lengths))
    positions_T = torch.arange(padded_width, device=device)
    return torch.where(positions_T < lengths_B1, starts_B1 + positions_T, -1)


def packed(values_BT: Tensor, slots_BT: Tensor, layout: Layout) -> Tensor:
    """Scatter values_BT into values_RW; unused slots are zero."""
    placed_BT = slots_BT >= 0
    values_S = values_BT.new_zeros(layout.num_rows * layout.width)
    values_S[slots_BT[placed_BT]] = values_BT[placed_BT]
    return values_S.view(layout.num_rows, layout.width)


SEPARATING_ATTENTION = ("sdpa", "eager")  # implementations in transformers that take a mask


@contextmanager
def texts_apart(lm: PreTrainedModel, positions_RW: Tensor) -> Iterator[None]:
    """Prevent the sequences of a packed row from attending to each other for the duration of the block.

    The model must be given the positions as well. OPT and BLOOM build their masks without positions, and BLOOM's bias
    depends on distances along the row: hooks replace the mask, and the bias, in each of their layers.

    Args:
        positions_RW: Of tokens in their sequences; each sequence begins with a 0.

    Raises:
        UserError: If the attention implementation takes no mask.
    """
    family = FAMILIES[lm.config.model_type]
    reject_attention(str(lm.config._attn_implementation), where=str(lm.config.name_or_path))  # noqa: SLF001  # it has no other name
    if family.texts_apart == "positions":
        yield
        return
    sees_R1WW = seen_within_texts(positions_RW)
    bias = distance_bias(lm, positions_RW) if family.texts_apart == "mask_and_bias" else None
    takes_bool = lm.config._attn_implementation == "sdpa"  # noqa: SLF001

    def hand_over(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        mask = sees_R1WW if takes_bool else as_summand(sees_R1WW, args[0].dtype)
        biases = {} if bias is None else {"alibi": bias.to(kwargs["alibi"].dtype)}
        return args, {**kwargs, "attention_mask": mask, **biases}

    with ExitStack() as hooks:
        for layer in range(lm.config.num_hidden_layers):
            module = lm.get_submodule(f"{family.layer_prefix}{layer}")
            hooks.enter_context(module.register_forward_pre_hook(hand_over, with_kwargs=True))
        yield


def seen_within_texts(positions_RW: Tensor) -> Tensor:
    """Return sees_R1WW, True if a token attends to another: an earlier one of its own sequence, or itself."""
    texts_RW = (positions_RW == 0).cumsum(dim=1)
    return (texts_RW[:, :, None] == texts_RW[:, None, :]).tril()[:, None]


def as_summand(sees_R1WW: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive attention mask: 0 if a token attends to another, else the minimum of the dtype."""
    return torch.zeros_like(sees_R1WW, dtype=dtype).masked_fill(~sees_R1WW, torch.finfo(dtype).min)


def distance_bias(lm: Any, positions_RW: Tensor) -> Tensor:
    """Return BLOOM's attention bias, float32 [R x N, 1, W], as if each sequence had its own row."""
    rows, width = positions_RW.shape
    whole_row = torch.ones(1, width, device=positions_RW.device)
    bias_NW = lm.base_model.build_alibi_tensor(whole_row, lm.config.n_head, torch.float32)[:, 0]
    return bias_NW[:, positions_RW].transpose(0, 1).reshape(rows * len(bias_NW), 1, width)


def reject_attention(implementation: str, *, where: str) -> None:
    """Raise UserError if an attention implementation of transformers does not separate packed sequences.

    Its FlashAttention uses positions only if all sequences are in one row.
    """
    if implementation not in SEPARATING_ATTENTION:
        raise UserError(
            f"{where}: attn_implementation {implementation!r} attends across packed sequences. "
            f"Set it to one of {', '.join(SEPARATING_ATTENTION)} in config.json, or set distill.packing to false."
        )


STUDENT_IDS = "student_ids"  # of a batch: ids that the student reads in place of input_ids


class UnknownInputs(Algorithm):
    """Adds the student's input ids to each training batch.

    Args:
        vocabulary: Of the student, with unknown_id.
        share: Probability in (0, 1] that an id outside the student's outputs is replaced.
        seed: Of the training run.
    """

    def __init__(self, vocabulary: DraftVocabulary, *, share: float, seed: int):
        assert vocabulary.unknown_id is not None, "training runs with unknown_inputs record an unknown id"
        self.unknown_id = vocabulary.unknown_id
        self.share = share
        self.seed = seed
        self.is_output_V = torch.zeros(vocabulary.vocab_size, dtype=torch.bool)
        self.is_output_V[torch.tensor(vocabulary.ids)] = True

    def match(self, event: Event, state: State) -> bool:  # noqa: ARG002  # Composer's signature
        return event == Event.AFTER_DATALOADER

    def apply(self, event: Event, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        batch = state.batch
        ids_BT = self.shown(batch["input_ids"], batch["attention_mask"], batch_number=state.timestamp.batch.value)
        state.batch = {**batch, STUDENT_IDS: ids_BT}

    def shown(self, input_ids_BT: Tensor, real_BT: Tensor, *, batch_number: int) -> Tensor:
        """Return ids_BT as the student reads them; input_ids_BT are padded on the right."""
        ids_BT, lengths = input_ids_BT.cpu(), real_BT.sum(dim=1).tolist()
        prob_BT = torch.ones(ids_BT.shape)
        for row, (ids_T, length) in enumerate(zip(ids_BT, lengths, strict=True)):
            content = zlib.crc32(ids_T[:length].numpy().tobytes())
            drawn_T = np.random.default_rng([self.seed, batch_number, content]).random(length, dtype=np.float32)
            prob_BT[row, :length] = torch.from_numpy(drawn_T)
        is_hidden_BT = ~self.is_output_V[ids_BT] & (prob_BT < self.share)
        return input_ids_BT.masked_fill(is_hidden_BT.to(input_ids_BT.device), self.unknown_id)

"""Text domains as packed sequences of token ids, streamed by `datasets` and resumable, and their mixture.

A plain text file is one document. Each row of JSON lines or of a `datasets` split is a document with the tokenizer's
special tokens, followed by its end-of-sequence token. Documents are concatenated and split every max_seq_len tokens;
the remainder at the end of the text is dropped.

All processes read the same text, so the sequences do not depend on the number of processes: `split_dataset_by_node`
would give each process different ones.

Weights, losses and references are in the order of the domains. Losses are in nats per token, weights add up to 1.

Source of both rules: Xia et al. 2023, "Sheared LLaMA: Accelerating Language Model Pre-training via Structured
Pruning", Algorithm 1 (arXiv 2310.06694), and the code released with it, DynamicLoadingCallback.update_proportion in
github.com/princeton-nlp/LLM-Shearing (commit b87218b, update_type "doremi"). They differ in two things:

    * the paper takes max(loss - reference, 0); the code takes the difference, so that a domain better than its
      reference loses weight by itself, and not only because other domains gain;
    * the code then mixes in 1e-4 of the uniform distribution, so that no weight falls below 1e-4 / domains.

Shape suffixes used in this file:
    N = sequences
    T = tokens per sequence
    B = sequences in the batch
"""

import math
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from composer.utils import dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from architectures.errors import UserError
from architectures.files import looked_for, parse_json, require_regular
from distill.recipe.sections import TextConfig, TextDomain, is_plain_text
from eval.prompts import require_object

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

IDS = np.int32
READER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="text")  # prefetches blocks
ROWS_PER_CHUNK = 64  # enough to amortise a tokenizer call, few enough that little is read ahead


@dataclass(frozen=True)
class StreamPosition:
    """A position in a text: number of a chunk of rows, the state of `datasets` before it, and tokens of it to skip."""

    chunk: int
    rows: dict[str, Any]
    offset: int


class PackedText:
    """The sequences of one domain, in the order of its text."""

    def __init__(self, domain: TextDomain, tokenizer: "PreTrainedTokenizerBase", *, max_seq_len: int):
        self.domain, self.tokenizer, self.max_seq_len = domain, tokenizer, max_seq_len
        self.rows = open_rows(domain)
        self.go_to(StreamPosition(0, deepcopy(self.rows.state_dict()), 0))

    def position(self) -> StreamPosition:
        if not self.chunks:
            return StreamPosition(self.next_chunk, self.state, self.offset)
        return StreamPosition(*self.chunks[0][:2], self.offset)

    def go_to(self, position: StreamPosition) -> None:
        """Continue from a position in this text."""
        self.next_chunk, self.offset = position.chunk, position.offset
        self.state = position.rows  # of `datasets`, before the next chunk
        self.rows.load_state_dict(deepcopy(position.rows))
        self.iterator = iter(self.rows)
        self.chunks: deque[tuple[int, dict[str, Any], np.ndarray]] = deque()
        self.has_ended = False

    def take(self, count: int) -> list[list[int]]:
        """Return the next sequences; fewer than `count` only at the end of the text."""
        return self.take_array(count).tolist()

    def take_array(self, count: int) -> np.ndarray:
        """Return the same as ids_NT."""
        while not self.has_ended and self._num_tokens() < count * self.max_seq_len:
            self._read_chunk()
        count = min(count, self._num_tokens() // self.max_seq_len)
        tokens = count * self.max_seq_len
        parts: list[np.ndarray] = [np.empty(0, IDS)]
        while tokens:
            ids = self.chunks[0][2][self.offset : self.offset + tokens]
            parts.append(ids)
            tokens, self.offset = tokens - len(ids), self.offset + len(ids)
            if self.offset == len(self.chunks[0][2]):
                self.chunks.popleft()
                self.offset = 0
        return np.concatenate(parts).reshape(count, self.max_seq_len)

    def _num_tokens(self) -> int:
        return sum(len(ids) for _, _, ids in self.chunks) - self.offset

    def _read_chunk(self) -> None:
        try:
            rows = list(islice(self.iterator, ROWS_PER_CHUNK))
        except read_errors() as error:
            raise unreadable(self.domain, error) from error
        if not rows:
            self.has_ended = True
            return
        ids = np.array(self._tokenize(rows, first_row=self.next_chunk * ROWS_PER_CHUNK + 1), IDS)
        if len(ids):
            self.chunks.append((self.next_chunk, self.state, ids))
        self.next_chunk, self.state = self.next_chunk + 1, deepcopy(self.rows.state_dict())

    def _tokenize(self, rows: Sequence[Mapping[str, Any]], *, first_row: int) -> list[int]:
        path = self.domain.path
        if path is not None and is_plain_text(path):
            text = "".join(f"{row['text']}\n" for row in rows)
            return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        texts = []
        for number, row in enumerate(rows, start=first_row):
            if path is not None:  # pyarrow's JSON reader crashes the process on deep nesting
                if not row["text"].strip():
                    continue
                row = parse_json(row["text"], f"{path}:{number}", "Write one JSON object per line.")  # noqa: PLW2901
                require_object(row, f"{path}:{number}", example=f'{{"{self.domain.field}": "Some text."}}')
            text = row.get(self.domain.field)
            if not isinstance(text, str):
                raise UserError(
                    f"{text_source(self.domain)}: row {number} has no text in field {self.domain.field!r}, only "
                    f"{', '.join(row)}. Set field of text.domains {self.domain.name} to the one with the text."
                )
            texts.append(text)
        texts = [text for text in texts if text]
        documents = self.tokenizer(texts, verbose=False)["input_ids"] if texts else []
        end = cast("int", self.tokenizer.eos_token_id)
        return [token for ids in documents for token in (*ids, *([end] if ids[-1:] != [end] else []))]


class DomainStream:
    """Endless training sequences of one domain: blocks of the text, each shuffled, over repeated passes.

    The next block is prefetched.

    Args:
        text: Positioned at the first training sequence, of which there is at least one.
        seed: Of the order; each pass over the text adds 1.
        block_size: Sequences read and shuffled together.
    """

    def __init__(self, text: PackedText, *, seed: int, block_size: int):
        self.text, self.seed, self.block_size = text, seed, block_size
        self.start = text.position()
        self.epoch = self.block_number = 0
        self.ahead = READER.submit(self._read_block)
        self._next_block()

    def next_sequence(self) -> list[int]:
        if self.offset == len(self.block_NT):
            self.block_number += 1
            self._next_block()
        sequence_T = self.block_NT[self.order[self.offset]]
        self.offset += 1
        return sequence_T.tolist()

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "block_number": self.block_number,
            "offset": self.offset,
            "position": vars(self.block_start),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.ahead.result()
        self.epoch, self.block_number = state["epoch"], state["block_number"]
        self.text.go_to(StreamPosition(**state["position"]))
        self.ahead = READER.submit(self._read_block)
        self._next_block()
        self.offset = state["offset"]

    def _read_block(self) -> tuple[StreamPosition, np.ndarray]:
        """Return the position of the next block and the block itself; restart at the end of the text."""
        begin, block_NT = self.text.position(), self.text.take_array(self.block_size)
        if len(block_NT):
            return begin, block_NT
        self.text.go_to(self.start)
        return self.start, self.text.take_array(self.block_size)

    def _next_block(self) -> None:
        begin, self.block_NT = self.ahead.result()
        if begin == self.start and self.block_number:
            self.epoch, self.block_number = self.epoch + 1, 0
        self.block_start, self.offset = begin, 0
        self.order = np.random.default_rng([self.seed + self.epoch, self.block_number]).permutation(len(self.block_NT))
        self.ahead = READER.submit(self._read_block)


def open_rows(domain: TextDomain) -> "datasets.IterableDataset":
    """Stream the rows of a domain; of a file its lines."""
    from datasets import load_dataset

    try:
        if domain.path is None:
            rows = load_dataset(cast("str", domain.dataset), domain.config, split=domain.split, streaming=True)
        else:
            require_regular(Path(domain.path), hint=f"Fix or replace the path of text.domains {domain.name}.")
            Path(domain.path).open("rb").close()  # `datasets` does not report why a file cannot be read
            rows = load_dataset("text", data_files=domain.path, split="train", streaming=True)
    except read_errors() as error:
        raise unreadable(domain, error) from error
    return cast("datasets.IterableDataset", rows)


def read_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that `datasets` raises for missing or malformed text."""
    from datasets.exceptions import DatasetsError

    # StopIteration for a file without rows; the last two for damaged gzip
    return (DatasetsError, OSError, ValueError, RuntimeError, StopIteration, EOFError, zlib.error)


def unreadable(domain: TextDomain, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or "it has no rows"
    where = looked_for(Path(domain.path)) if domain.path and isinstance(error, FileNotFoundError) else ""
    return UserError(
        f"{text_source(domain)}: text.domains {domain.name} cannot be read ({reason}).{where} Fix or replace it."
    )


def text_source(domain: TextDomain) -> str:
    if domain.path is not None:
        return domain.path
    return f"dataset {domain.dataset}" + (f", config {domain.config}" if domain.config else "") + f", {domain.split}"


def held_out_sequences(text: PackedText, *, count: int) -> list[list[int]]:
    """Return the first sequences of a domain, and leave the text after them; raise UserError if it then has ended."""
    held_out = text.take(count)
    start = text.position()
    num_sequences = len(held_out) + len(text.take(1))
    if num_sequences <= count:
        raise UserError(
            f"{text_source(text.domain)}: text.domains {text.domain.name} has {num_sequences} sequences of "
            f"{text.max_seq_len} tokens, but {count} held out and one for training are needed. "
            "Add text, or lower text.num_eval_sequences or text.max_seq_len."
        )
    text.go_to(start)
    return held_out


def open_texts(config: TextConfig, tokenizer: "PreTrainedTokenizerBase") -> dict[str, PackedText]:
    """Open the text of every domain, by name; raise UserError if the tokenizer has no end-of-sequence token."""
    if tokenizer.eos_token_id is None:
        raise UserError(f"{tokenizer.name_or_path}: the tokenizer has no eos_token, which separates documents. Set it.")
    return {domain.name: PackedText(domain, tokenizer, max_seq_len=config.max_seq_len) for domain in config.domains}


UNIFORM_SHARE = 1e-4  # of the released code, which has it from DoReMi (Xie et al. 2023, arXiv 2305.10429)
SHUFFLE_BLOCK = 1024  # consecutive sequences of a domain that are shuffled together

Sample = dict[str, Tensor | int]
Collate = Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]  # from samples to a batch


def paper_weights(weights: Sequence[float], losses: Sequence[float], references: Sequence[float]) -> list[float]:
    """Return W * exp(max(loss - reference, 0)), normalised: Algorithm 1 of the paper. Unchanged at the references."""
    excess = [max(loss - reference, 0.0) for loss, reference in zip(losses, references, strict=True)]
    return exponentiated(weights, excess)


def code_weights(weights: Sequence[float], losses: Sequence[float], references: Sequence[float]) -> list[float]:
    """Return W * exp(loss - reference), normalised, with 1e-4 of the uniform distribution mixed in: the released code.

    In float64; the released code uses float32.
    """
    excess = [loss - reference for loss, reference in zip(losses, references, strict=True)]
    return [(1 - UNIFORM_SHARE) * w + UNIFORM_SHARE / len(weights) for w in exponentiated(weights, excess)]


def fixed_weights(weights: Sequence[float], losses: Sequence[float], references: Sequence[float]) -> list[float]:  # noqa: ARG001  # one signature for all rules
    return list(weights)


RULES: dict[str, Callable[[Sequence[float], Sequence[float], Sequence[float]], list[float]]] = {
    "fixed": fixed_weights,
    "paper": paper_weights,
    "code": code_weights,
}


def exponentiated(weights: Sequence[float], excess: Sequence[float]) -> list[float]:
    """Return W * exp(excess), normalised. A weight of 0 stays 0."""
    if not any(excess):
        return list(weights)  # bit-identical, which a division by their sum need not be
    largest = max(excess)
    scaled = [w * math.exp(e - largest) for w, e in zip(weights, excess, strict=True)]
    return [value / sum(scaled) for value in scaled]


@dataclass(eq=False)
class MixedDomains(IterableDataset[Sample]):
    """Endless training sequences, each from a domain drawn by the current weights.

    All processes draw the same domains in the same order and keep every world_size-th sequence, so the sequences of a
    batch do not depend on the number of processes, and one state holds the position of all.

    The position belongs to the dataset and not to its iterators: a second iteration continues the first. Composer's
    checkpoints hold it through `state_dict`, and then do not skip batches on resuming.

    Args:
        streams: Sequences of each domain, by name.
        weights: Probability of each domain; they add up to 1.
        fingerprint: Settings of the streams; a state with other settings is rejected.
        size: Number of processes that share the draws.
    """

    streams: Mapping[str, DomainStream]
    weights: Sequence[float]
    seed: int
    fingerprint: Mapping[str, int]
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        self.names = tuple(self.streams)
        self.num_used = dict.fromkeys(self.names, 0)  # sequences over all processes
        self.generator = torch.Generator().manual_seed(self.seed)

    def __iter__(self) -> Iterator[Sample]:
        """Yield {"input_ids": ids_T, "domain": index of its domain}; in this process, since weights change."""
        while True:
            yield [self._draw() for _ in range(self.size)][self.rank]

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002  # Composer's signature
        """Return the state of the draws, the same on every process between two batches."""
        return {
            "fingerprint": self.fingerprint,
            "weights": dict(zip(self.names, self.weights, strict=True)),
            "num_used": dict(self.num_used),
            "generator": self.generator.get_state(),
            "streams": {name: stream.state_dict() for name, stream in self.streams.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; raise UserError if it is of other domains or other settings."""
        ours, theirs = (
            {"domains": list(names), **marks}
            for names, marks in ((self.names, self.fingerprint), (state["weights"], state["fingerprint"]))
        )
        different = [key for key in ours if ours[key] != theirs.get(key)]
        if different:
            key = different[0]
            raise UserError(
                f"text.{key} was {theirs.get(key)} when the checkpoint was written, but is {ours[key]} now. "
                "Change it back, or set another run_name."
            )
        self.weights = [state["weights"][name] for name in self.names]
        self.num_used = dict(state["num_used"])
        self.generator.set_state(state["generator"])
        for name, stream in self.streams.items():
            stream.load_state_dict(state["streams"][name])

    def _draw(self) -> Sample:
        weights = torch.tensor(self.weights, dtype=torch.float64)
        domain = int(torch.multinomial(weights, 1, generator=self.generator))
        name = self.names[domain]
        self.num_used[name] += 1
        return {"input_ids": torch.tensor(self.streams[name].next_sequence()), "domain": domain}


def text_loader(
    config: TextConfig,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    batch_size: int,
    seed: int,
    rank: int = 0,
    size: int = 1,
    collate: Collate | None = None,
) -> tuple[DataLoader[Any], MixedDomains]:
    """Return endless batches {"input_ids": ids_BT, "domain": domain_B} for this process, and their dataset.

    Args:
        batch_size: Sequences per batch of this process.
        seed: Of the draws and of the order within each domain.
        collate: Replaces the default collation.

    Raises:
        UserError: If the text of a domain cannot be read, or is too short.
    """
    texts = open_texts(config, tokenizer)
    for text in texts.values():
        held_out_sequences(text, count=config.num_eval_sequences)
    streams = {name: DomainStream(text, seed=seed, block_size=SHUFFLE_BLOCK) for name, text in texts.items()}
    fingerprint = {key: getattr(config, key) for key in ("max_seq_len", "num_eval_sequences")}
    total = sum(domain.weight for domain in config.domains)
    weights = [domain.weight / total for domain in config.domains]
    dataset = MixedDomains(streams, weights, seed, fingerprint, rank, size)
    # Without its own generator, every new iterator would draw from torch's, which dropout and masks use.
    generator = torch.Generator()
    return DataLoader(dataset, batch_size=batch_size, collate_fn=collate, generator=generator), dataset


def text_eval_loaders(
    config: TextConfig,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    batch_size: int,
    collate: Collate | None = None,
) -> dict[str, DataLoader[Any]]:
    """Return this process's share of each domain's held-out sequences, in order, by domain name."""
    loaders = {}
    for domain, (name, text) in enumerate(open_texts(config, tokenizer).items()):
        sequences = held_out_sequences(text, count=config.num_eval_sequences)
        dataset = cast("Dataset[Sample]", [{"input_ids": torch.tensor(ids), "domain": domain} for ids in sequences])
        sampler = dist.get_sampler(dataset, shuffle=False)
        generator = torch.Generator()
        loaders[name] = DataLoader(
            dataset, batch_size=batch_size, sampler=sampler, collate_fn=collate, generator=generator
        )
    return loaders

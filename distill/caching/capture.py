"""What the teacher says of each answer token goes to the disk: it reads every answer once, or kept its states.

Shape suffixes used in this file:
    A = answer tokens, one row each; H = hidden width; S = tokens drawn

A shard is written whole or not at all, always from the same batches and with a seed for each answer: a killed capture
continues at its first missing shard and ends in the same bytes as one that was left alone.
"""

import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from architectures.errors import UserError
from architectures.files.disk import free_bytes, size
from architectures.progress.track import track
from architectures.settings.holding import WHOLE, Holding
from architectures.shapes.shape import Shape
from architectures.sharing import ALONE, Share
from architectures.targets.target import read_config
from distill.data.batches import Example
from distill.losses.chunked import Head
from distill.recipe.sections.teacher import AnyCache, HiddenCache, TopKCache, bytes_per_token, kept_of, refuse_k_beyond
from distill.teacher_cache.contents import join_rows, sampled_rows, top_k_rows, uniform_numbers
from distill.teacher_cache.index import (
    Shard,
    cut_into_shards,
    fingerprint_examples,
    index_file,
    write_index,
    write_tensors,
)
from distill.teacher_cache.record import FORMAT, FileRecord, Journal, intact_files, remove_journals
from eval.decoding.generate import derive_seed

ROWS_AT_ONCE = 256  # whose logits are held together
INDEX_BYTES = 8  # of each answer


@dataclass(frozen=True)
class CaptureSettings:
    """How the teacher is read.

    Attributes:
        cache: Section `distill.teacher` of the recipe.
        dtype: Number type of the teacher's weights, arithmetic and hidden states, by name.
        seed: Of the draws.
        batch_size: Answers read together.
        holding: How the teacher is held.
        ids: Ascending, that kept entries are of, by row: the teacher given that it says one of them; None for all ids.
    """

    cache: AnyCache
    dtype: str
    seed: int
    batch_size: int
    ids: tuple[int, ...] | None = None
    holding: Holding = WHOLE

    def rows_among(self, vocab_size: int) -> int:
        """How many ids kept entries are of, in a vocabulary of so many."""
        return vocab_size if self.ids is None else bisect_left(self.ids, vocab_size)


@dataclass(frozen=True)
class Split:
    """The "train" or the "eval" answers, and the files their rows will be in."""

    name: str
    examples: Sequence[Example]
    kept: AnyCache
    token_bytes: int
    shards: list[Shard]

    @property
    def num_kept(self) -> list[int]:
        """Answer tokens of each answer."""
        return [example.num_kept for example in self.examples]

    @property
    def num_bytes(self) -> int:
        """What rows and index take; the files' headers are a few hundred bytes each."""
        return sum(self.num_kept) * self.token_bytes + (len(self.examples) + 1) * INDEX_BYTES


def capture_teacher(
    target: Path,
    answers: Mapping[str, Sequence[Example]],
    out: Path,
    settings: CaptureSettings,
    *,
    source: "StateSource",
    inputs: Mapping[str, str],
    finish: Callable[..., None],
    share: Share = ALONE,
) -> None:
    """Write what the teacher says of every answer token into a cache folder; continue one that was interrupted.

    Args:
        target: The teacher's Hugging Face folder.
        answers: The examples of each split, in the order their rows are asked for.
        out: The cache's folder.
        settings: How the teacher is read.
        source: Of its states.
        inputs: Named fingerprints of everything the rows depend on.
        finish: Called with what the manifest says of the cache; writes it.
        share: This process's part of the files.

    Raises:
        UserError: If the disk has too little room, top_k asks for more entries than there are, or out holds a cache
            that was made from other inputs.
    """
    splits = plan_splits(target, answers, settings)
    journal = share.lead(lambda: begun_journal(out, inputs, splits)).of_process(share.index)
    capturer = Capturer(source, settings)
    for split in splits:
        write_shards(split, capturer, journal, share)
    files = {name: record for each in share.exchange(journal.files) for name, record in each.items()}
    if share.leads:
        files |= {
            index_file(split.name): write_index(out, split.name, split.num_kept, split.shards) for split in splits
        }
        finish(
            format=FORMAT,
            splits={split.name: describe(split, settings) for split in splits},
            files={name: vars(files[name]) for name in sorted(files)},
        )
        remove_journals(out)


def begun_journal(out: Path, inputs: Mapping[str, str], splits: Sequence[Split]) -> Journal:
    """The journal of a cache with the files that are there, once it is known that the others fit on the disk.

    Raises:
        UserError: As capture_teacher.
    """
    journal = Journal(out, inputs)
    intact = find_intact(out, journal)
    say_size(splits, intact, out)
    journal.begin(intact)
    return journal


def plan_splits(target: Path, answers: Mapping[str, Sequence[Example]], settings: CaptureSettings) -> list[Split]:
    """What will be written, file by file, known from the target's config and the answers' lengths."""
    shape = Shape.from_config(read_config(target), where=str(target / "config.json"))
    rows = settings.rows_among(shape.vocab)
    refuse_k_beyond(settings.cache, vocab=shape.vocab, rows=rows)
    splits = []
    for name, examples in answers.items():
        token_bytes = bytes_per_token(settings.cache, name, hidden=shape.hidden, rows=rows, dtype=settings.dtype)
        shards = cut_into_shards(name, [example.num_kept for example in examples], token_bytes=token_bytes)
        splits.append(Split(name, examples, kept_of(settings.cache, name), token_bytes, shards))
    return splits


def find_intact(out: Path, journal: Journal) -> dict[str, FileRecord]:
    """The files that an earlier capture wrote and that are as it wrote them; names the others on stderr."""
    intact = intact_files(out, journal.files)
    for name in sorted(journal.files.keys() - intact.keys()):
        print(f"{out / name}: missing or damaged; it is written again", file=sys.stderr)
    return intact


def say_size(splits: Sequence[Split], intact: Mapping[str, FileRecord], out: Path) -> None:
    """Say what the cache takes and what is free, before anything is written.

    Raises:
        UserError: If it cannot fit.
    """
    for split in splits:
        print(
            f"{split.name}: {sum(split.num_kept):,} answer tokens of {len(split.examples):,} answers, "
            f"{split.kept.contents}, {split.token_bytes:,} bytes a token: {size(split.num_bytes).strip()}",
            file=sys.stderr,
        )
    num_bytes = sum(split.num_bytes for split in splits)
    missing_bytes = num_bytes - sum(record.num_bytes for record in intact.values())
    free = free_bytes(out)
    there = f", {size(missing_bytes).strip()} still to be written" if intact else ""
    print(f"together {size(num_bytes).strip()}{there}; {size(free).strip()} free", file=sys.stderr)
    if missing_bytes > free:
        raise UserError(
            f"{out}: the teacher cache needs {size(missing_bytes).strip()}, the disk has {size(free).strip()} free. "
            "Make room, set run_dir to another disk, or set distill.teacher.contents to top_k or samples."
        )


class StateSource(Protocol):
    """Where the teacher's last hidden states come from."""

    def head(self) -> Head:
        """The teacher's output head; asked for once, and only where entries are kept."""
        ...

    def states(self, split: Split, answers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """hidden_AH of each of some answers, in any order, on any device."""
        ...


class Capturer:
    """What a cache keeps, made of the teacher's states."""

    def __init__(self, source: StateSource, settings: CaptureSettings):
        self.source = source
        self.settings = settings

    @cached_property
    def head(self) -> Head:
        """The teacher's output head, of the ids that kept entries are of."""
        head, ids = self.source.head(), self.settings.ids
        if ids is None:
            return head
        rows = self.settings.rows_among(head.vocab_size)
        return head.rows_of(torch.tensor(ids[:rows], device=head.weight_VH.device))

    def read(self, split: Split, answers: Sequence[int]) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """The rows of some answers, in any order."""
        for answer, hidden_AH in self.source.states(split, answers):
            yield answer, {name: rows.cpu() for name, rows in self.rows(split, answer, hidden_AH).items()}

    @torch.inference_mode()
    def rows(self, split: Split, answer: int, hidden_AH: Tensor) -> dict[str, Tensor]:
        """What the cache keeps of one answer."""
        kept = split.kept
        if isinstance(kept, HiddenCache):
            return {"hidden": hidden_AH}
        device = self.head.weight_VH.device
        chunks = hidden_AH.to(device).split(ROWS_AT_ONCE)
        if isinstance(kept, TopKCache):
            return join_rows([top_k_rows(self.head.logits(chunk), kept.k) for chunk in chunks])
        seed = derive_seed(self.settings.seed, f"teacher_cache/{split.name}", answer)
        uniform_AS = uniform_numbers(len(hidden_AH), kept.num_samples, seed=seed).to(device)
        draws = uniform_AS.split(ROWS_AT_ONCE)
        return join_rows(
            [sampled_rows(self.head.logits(chunk), draw) for chunk, draw in zip(chunks, draws, strict=True)]
        )


def write_shards(split: Split, capturer: Capturer, journal: Journal, share: Share = ALONE) -> None:
    """Write this process's part of a split's missing shards under a progress bar.

    When all processes have written theirs, a line says how fast it went.
    """
    missing = share.mine([shard for shard in split.shards if shard.file not in journal.begun_with])
    num_answers = sum(len(shard.answers) for shard in missing)
    num_tokens = sum(split.examples[answer].num_kept for shard in missing for answer in shard.answers)
    start_s = time.monotonic()
    for _ in track(
        write_each(split, missing, capturer, journal),
        description=f"teacher of {split.name}{share.words}",
        total=num_answers,
        works=lambda answer: len(split.examples[answer].input_ids),
        whole=sum(len(split.examples[answer].input_ids) for shard in missing for answer in shard.answers),
    ):
        pass
    num_answers, num_tokens = map(sum, zip(*share.exchange((num_answers, num_tokens)), strict=True))
    if num_answers:
        elapsed_s = time.monotonic() - start_s
        print(
            f"{split.name}: {num_answers} answers, {num_tokens} tokens, {num_tokens / elapsed_s:.0f} tokens/s",
            file=sys.stderr,
        )


def write_each(split: Split, missing: Sequence[Shard], capturer: Capturer, journal: Journal) -> Iterator[int]:
    """Yield each answer that was read; its shard is written when it is complete."""
    for shard in missing:
        rows: dict[int, dict[str, Tensor]] = {}
        for answer, kept in capturer.read(split, shard.answers):
            rows[answer] = kept
            yield answer
        content = join_rows([rows[answer] for answer in shard.answers])
        journal.add(shard.file, write_tensors(content, journal.folder / shard.file))


def describe(split: Split, settings: CaptureSettings) -> dict[str, Any]:
    """A split as the manifest describes it."""
    counts = split.kept.model_dump(include={"k", "num_samples"})  # of entries
    rows = {"rows": len(settings.ids)} if counts and settings.ids is not None else {}
    return {
        "contents": split.kept.contents,
        **counts,
        **rows,
        "bytes_per_token": split.token_bytes,
        "answers": len(split.examples),
        "answer_tokens": sum(split.num_kept),
        "examples": fingerprint_examples(split.examples),
        "shards": [shard.file for shard in split.shards],
    }

"""A stream of requests: rows of prompt sources in an order that can shift, or lines of a file that grows. No torch."""

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO, Literal, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from architectures.errors import UserError
from architectures.files.reading import require_regular, unreadable
from architectures.files.section import Section
from architectures.settings.kinds import MOST
from eval.prompts import (
    MOST_CHARACTERS,
    Prompt,
    Rows,
    UnreadRow,
    line_row,
    parse_category,
    parser_of,
    require_object,
    source_name,
    source_rows,
    source_words,
)
from eval.tasks import PromptSource

Mix = Literal["in_order", "sharp", "smooth"]
Malformed = Literal["stop", "skip"]
POLL_S = 0.1
LEAST_SHARE, SWAPPED_SHARE = 0.1, 0.7  # of the two sets that change places, and what moves from one to the other


class StreamConfig(Section):
    """Requests one after the other, and in which order those of several sets come."""

    sources: tuple[PromptSource, ...] = Field(strict=False, min_length=1, description="Where requests are read from.")
    label: str | None = Field(
        default=None,
        min_length=1,
        description="Field of a row that names the set of its request, such as dataset, language or topic; null is "
        "the name of its task, else of its file. Acceptance is reported by set.",
    )
    mix: Mix = Field(
        default="in_order",
        description="Order of the sets: as the sources are; sharp, equal shares one set after another; smooth, drawn "
        "with probabilities that move over the stream.",
    )
    num_requests: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Requests of the stream; null is all that there are, of a sharp mix as many of each set as the "
        "smallest has.",
    )
    follow: bool = Field(default=False, description="Wait for lines that are still being written to the file.")
    idle_s: float | None = Field(
        default=None, gt=0, description="Seconds without a new line that end a followed file; null waits for ever."
    )
    malformed: Malformed = Field(
        default="stop", description="What a row that is no prompt does: end everything, or be skipped and counted."
    )

    @field_validator("mix")
    @classmethod
    def _of_several_sets(cls, mix: Mix, info: ValidationInfo) -> Mix:
        if mix != "in_order" and len(info.data.get("sources", "..")) < 2 and info.data.get("label") is None:
            raise ValueError(f"must be in_order for one source without a label, got {mix}. Name the sets to mix.")
        return mix

    @field_validator("follow")
    @classmethod
    def _one_file_in_order(cls, follow: bool, info: ValidationInfo) -> bool:  # noqa: FBT001  # pydantic's signature
        if not follow:
            return follow
        sources, mix = info.data.get("sources"), info.data.get("mix", "in_order")
        if sources is not None and (len(sources) > 1 or sources[0].path is None):
            raise ValueError("must be false unless sources names one file, got true. Only one file can be waited on.")
        if mix != "in_order":
            raise ValueError(f"must be false when mix is {mix}, got true. What is not written yet cannot be mixed.")
        return follow

    @field_validator("idle_s")
    @classmethod
    def _only_followed(cls, idle_s: float | None, info: ValidationInfo) -> float | None:
        if idle_s is not None and info.data.get("follow") is False:
            raise ValueError(f"must be left out when follow is false, got {idle_s:g}. Nothing is waited for.")
        return idle_s


class Request(NamedTuple):
    """A prompt, its place in the stream from 0, and the name of its set."""

    number: int
    prompt: Prompt
    source: str


class Labelled(NamedTuple):
    """A prompt and the name of its set."""

    prompt: Prompt
    label: str


Sets = Sequence[Iterator[Labelled]]


@dataclass(frozen=True)
class Waiting:
    """How a file is waited on: seconds without a new line that end it (None waits for ever), sleep and clock."""

    idle_s: float | None
    sleep: Callable[[float], None] = sleep
    clock: Callable[[], float] = monotonic


def open_stream(
    config: StreamConfig, *, seed: int, start: int = 0, waiting: Waiting | None = None
) -> Iterator[Request]:
    """The requests of a stream, the same ones for the same seed wherever it starts.

    Args:
        config: Where requests are, and how they are mixed.
        seed: Of a smooth mix.
        start: Place of the first one; earlier rows are read again, because they decide which the later ones are.
        waiting: How a followed file is waited on; as config says if left out.

    Raises:
        UserError: If a row is no prompt and such are not skipped, or a source cannot be read or holds no prompt.
    """
    skipped: list[str] = []
    waiting = waiting or Waiting(config.idle_s)
    sets = [readable(rows_of(source, config, waiting), source, config, skipped) for source in config.sources]
    if not config.follow:
        sets = [at_least_one(labelled, source) for labelled, source in zip(sets, config.sources, strict=True)]
    number = 0
    for labelled in islice(mixed(sets, config, seed), config.num_requests):
        if number >= start:
            yield Request(number, labelled.prompt, labelled.label)
        number += 1
    wanted = start if config.num_requests is None else config.num_requests
    if number < wanted:
        warn(f"The stream of requests ended early, after {number} of {wanted}.")
    if skipped:
        warn(f"Stream of requests: {len(skipped)} malformed rows skipped: {source_words(skipped)}")


def warn(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def readable(rows: Rows, source: PromptSource, config: StreamConfig, skipped: list[str]) -> Iterator[Labelled]:
    """The prompts of a source with their labels; malformed rows are noted in `skipped`, or raise."""
    parse = parser_of(source)
    with closing(rows):
        for row in rows:
            try:
                value = row.read()
                prompt = parse(value, row.where)
                if prompt is None:  # a row that the task leaves out
                    continue
                label = default_label(source) if config.label is None else field_label(value, config.label, row.where)
            except UserError:
                if config.malformed == "stop":
                    raise
                skipped.append(row.where)
                continue
            yield Labelled(prompt, label)


def default_label(source: PromptSource) -> str:
    """The name of a source's task, else of its file or data set."""
    return source.task or (source_name(source) if source.path is None else Path(source.path).stem)


def field_label(row: Any, label: str, where: str) -> str:
    """The value of a row's field."""
    require_object(row, where, example=f'{{"{label}": "..."}}')
    value = parse_category(row.get(label), where)
    if value is None:
        raise UserError(f"{where}: has no {label}, the stream's label. Give each row one, or set malformed to skip.")
    return value


def at_least_one(labelled: Iterator[Labelled], source: PromptSource) -> Iterator[Labelled]:
    """All prompts of a source; raises UserError if there is none."""
    first = next(labelled, None)
    if first is None:
        raise UserError(f"{source_name(source)}: no prompts in it. Give a source with at least one row that is one.")
    yield first
    yield from labelled


def rows_of(source: PromptSource, config: StreamConfig, waiting: Waiting) -> Rows:
    """The rows of a source; of a hub data set at most as many as the stream could need."""
    if config.follow:
        yield from islice(followed_rows(Path(str(source.path)), waiting), source.num_prompts)
        return
    if source.path is None and source.num_prompts is None and config.label is None and config.malformed == "stop":
        source = source.model_copy(update={"num_prompts": config.num_requests})
    yield from source_rows(source)


def followed_rows(path: Path, waiting: Waiting) -> Iterator[UnreadRow]:
    """Each whole line of a file, and each that is written to it later; blank lines are skipped but counted."""
    try:
        require_regular(path, remedy="Name a file of JSON lines.")
        with path.open("rb") as file:
            for number, line in enumerate(followed_lines(path, file, waiting), start=1):
                if line.strip():
                    yield line_row(line, f"{path}:{number}")  # bytes: json skips a byte-order mark itself
    except OSError as error:
        raise UserError(unreadable(path, error, "Make the file before it is followed.")) from error


def followed_lines(path: Path, file: BinaryIO, waiting: Waiting) -> Iterator[bytes]:
    """Whole lines; a line counts once its end is written."""
    unfinished, since_s = b"", None
    while True:
        unfinished += file.readline(MOST_CHARACTERS)
        if unfinished.endswith(b"\n"):
            yield unfinished
            unfinished, since_s = b"", None
            continue
        if len(unfinished) >= MOST_CHARACTERS:
            raise UserError(f"{path}: has a line of over {MOST_CHARACTERS:,} bytes. Write one JSON object per line.")
        since_s = waiting.clock() if since_s is None else since_s
        if waiting.idle_s is not None and waiting.clock() - since_s >= waiting.idle_s:
            break
        now, ours = path.stat(), os.fstat(file.fileno())
        if now.st_ino != ours.st_ino or now.st_size < file.tell():
            raise UserError(f"{path}: was truncated or replaced while it was followed. Only append, and start again.")
        waiting.sleep(POLL_S)
    if unfinished:
        warn(f"{path}: ends in a line of {len(unfinished):,} bytes without its end, which is left out.")


def mixed(sets: Sets, config: StreamConfig, seed: int) -> Iterator[Labelled]:
    """The requests of some sets in the order of a mix."""
    if config.mix == "in_order":
        return chain.from_iterable(sets)
    if config.label is not None:
        sets = by_label(chain.from_iterable(sets))
    total = config.num_requests
    if total is None:
        whole = list(map(list, sets))
        sizes = list(map(len, whole))
        total = min(sizes) * len(sizes) if config.mix == "sharp" else sum(sizes)
        sets = list(map(iter, whole))
    return sharp(sets, total) if config.mix == "sharp" else smooth(sets, total, seed=seed)


def by_label(labelled: Iterator[Labelled]) -> list[Iterator[Labelled]]:
    """All of them in sets of one label each, in the order in which labels are met."""
    sets: dict[str, list[Labelled]] = {}
    for each in labelled:
        sets.setdefault(each.label, []).append(each)
    return list(map(iter, sets.values()))


def equal_shares(total: int, num_sets: int) -> list[int]:
    """A total in whole parts that differ by one at most, the larger ones first."""
    return [total // num_sets + (index < total % num_sets) for index in range(num_sets)]


def sharp(sets: Sets, total: int) -> Iterator[Labelled]:
    """Equal shares of each set, one set after another; one with fewer rows gives what it has."""
    for rows, share in zip(sets, equal_shares(total, len(sets)), strict=True):
        given, label = 0, ""
        for labelled in islice(rows, share):
            given, label = given + 1, labelled.label
            yield labelled
        if given < share:
            warn(f"The stream's set {label} has {given} rows, and its share is {share}.")


def smooth_probabilities(progress: float, num_sets: int) -> list[float]:
    """How likely the next request is of each set.

    Of two sets the first gives way to the second. Of more, the first grows from a tenth to eight tenths, the second
    shrinks as much, and the others share a tenth.

    Source: Liu et al. 2023, "Online Speculative Decoding" (arXiv 2310.07177), as its code mixes two and three sets.

    Args:
        progress: Share of the stream that is behind.
        num_sets: At least one.
    """
    if num_sets == 1:
        return [1.0]
    if num_sets == 2:
        return [1 - progress, progress]
    moved = SWAPPED_SHARE * progress
    first, second = LEAST_SHARE + moved, LEAST_SHARE + SWAPPED_SHARE - moved
    return [first, second, *[(1 - first - second) / (num_sets - 2)] * (num_sets - 2)]


def smooth(sets: Sets, total: int, *, seed: int) -> Iterator[Labelled]:
    """At most so many requests, each of a set that is drawn; an empty set leaves its probability to the others."""
    draws = random.Random(seed)  # noqa: S311 - not for secrets
    upcoming = [next(rows, None) for rows in sets]
    for number in range(total):
        left = [index for index, labelled in enumerate(upcoming) if labelled is not None]
        if not left:
            return
        weights = smooth_probabilities(number / total, len(sets))
        chosen = draw_index(left, [weights[index] for index in left], draws.random())
        labelled = upcoming[chosen]
        assert labelled is not None  # it is one of those left
        yield labelled
        upcoming[chosen] = next(sets[chosen], None)
        if upcoming[chosen] is None and len(left) > 1 and number + 1 < total:
            warn(f"The stream's set {labelled.label} has no rows after {number + 1} of {total} requests.")


def draw_index(indices: Sequence[int], weights: Sequence[float], draw: float) -> int:
    """One of some indices, by weights of any positive sum, or equal ones where all are zero; draw is in [0, 1)."""
    bounds = list(accumulate(weights)) if sum(weights) else list(range(1, len(indices) + 1))
    pairs = zip(indices, bounds, strict=True)
    return next((index for index, bound in pairs if draw * bounds[-1] < bound), indices[-1])

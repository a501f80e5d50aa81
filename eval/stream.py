"""A stream of requests: rows of prompt sources in an order that can shift, or lines of a growing file. No torch."""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from architectures.errors import UserError
from architectures.files import parse_json, require_regular, unreadable
from architectures.settings import Section
from eval.prompts import MOST_CHARACTERS, ONE_OBJECT, Prompt, Rows, parser_of, source_name, source_rows
from eval.tasks import PromptSource

Mix = Literal["in_order", "sharp", "smooth"]
POLL_S = 0.1
LEAST_SHARE, SWAPPED_SHARE = 0.1, 0.7  # of more than two sets: initial share of the first, and its growth


class StreamConfig(Section):
    """A sequence of requests, and the order in which sources are mixed."""

    sources: tuple[PromptSource, ...] = Field(
        strict=False,
        min_length=1,
        description="Sources of requests. Acceptance is reported per source.",
    )
    mix: Mix = Field(
        default="in_order",
        description="in_order: one source after another; sharp: the same with equal counts; smooth: drawn with "
        "probabilities that change over the stream.",
    )
    follow: bool = Field(default=False, description="Wait for lines appended to the file.")

    @field_validator("mix")
    @classmethod
    def _of_several_sources(cls, mix: Mix, info: ValidationInfo) -> Mix:
        if mix != "in_order" and len(info.data.get("sources", "..")) < 2:
            raise ValueError(f"must be in_order for one source, got {mix}. Add sources to mix.")
        return mix

    @field_validator("follow")
    @classmethod
    def _one_file(cls, follow: bool, info: ValidationInfo) -> bool:  # noqa: FBT001  # pydantic's signature
        sources = info.data.get("sources")
        if follow and sources is not None and (len(sources) > 1 or sources[0].path is None):
            raise ValueError("must be false unless sources names one file, got true. Only one file can be followed.")
        return follow


class Request(NamedTuple):
    """A prompt, its place in the stream from 0, and the name of its source."""

    number: int
    prompt: Prompt
    source: str


Named = tuple[Prompt, str]  # a prompt and the name of its source


def open_stream(
    config: StreamConfig, *, seed: int, start: int = 0, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Request]:
    """Yield the requests of a stream, the same for the same seed wherever it starts.

    Args:
        seed: Of a smooth mix.
        start: Place of the first request; earlier rows are read again, because they determine the later ones.

    Raises:
        UserError: If a row is not a prompt, or a source cannot be read or is empty.
    """
    sets = [prompts_of(source, follow=config.follow, sleep=sleep) for source in config.sources]
    for number, (prompt, source) in enumerate(mixed(sets, config.mix, seed)):
        if number >= start:
            yield Request(number, prompt, source)


def prompts_of(source: PromptSource, *, follow: bool, sleep: Callable[[float], None]) -> Iterator[Named]:
    """Yield the prompts of a source, with the name of its task, else of its file or dataset."""
    name = source.task or (source_name(source) if source.path is None else Path(source.path).stem)
    parse, rows = parser_of(source), followed_rows(source, sleep) if follow else source_rows(source)
    is_empty = True
    with closing(rows):
        for where, row in rows:
            prompt = parse(row, where)
            if prompt is not None:  # None for a row that the task skips
                is_empty = False
                yield prompt, name
    if is_empty:
        raise UserError(f"{source_name(source)}: contains no prompts. Use a source with at least one row.")


def followed_rows(source: PromptSource, sleep: Callable[[float], None]) -> Rows:
    """Yield each complete line of a file, including those appended later; blank lines are skipped but counted."""
    path = Path(str(source.path))
    try:
        require_regular(path, hint="Pass a file of JSON lines.")
        with path.open("rb") as file:
            lines = enumerate(followed_lines(path, file, sleep), start=1)
            places = ((f"{path}:{number}", line) for number, line in lines if line.strip())
            for where, line in islice(places, source.num_prompts):
                yield where, parse_json(line, where, ONE_OBJECT)
    except OSError as error:
        raise UserError(unreadable(path, error, "Create the file first.")) from error


def followed_lines(path: Path, file: BinaryIO, sleep: Callable[[float], None]) -> Iterator[bytes]:
    unfinished = b""
    while True:
        unfinished += file.readline(MOST_CHARACTERS)
        if unfinished.endswith(b"\n"):
            yield unfinished
            unfinished = b""
            continue
        if len(unfinished) >= MOST_CHARACTERS:
            raise UserError(f"{path}: has a line of over {MOST_CHARACTERS:,} bytes. {ONE_OBJECT}")
        now, opened = path.stat(), os.fstat(file.fileno())
        if now.st_ino != opened.st_ino or now.st_size < file.tell():
            raise UserError(f"{path}: was truncated or replaced while being followed. Only append, and start again.")
        sleep(POLL_S)


def mixed(sets: Sequence[Iterator[Named]], mix: Mix, seed: int) -> Iterator[Named]:
    if mix == "in_order":
        return chain.from_iterable(sets)
    whole = list(map(list, sets))
    if mix == "smooth":
        return smooth(whole, seed=seed)
    smallest = min(map(len, whole))
    return chain.from_iterable(rows[:smallest] for rows in whole)


def smooth_probabilities(progress: float, num_sets: int) -> list[float]:
    """Return the probability of each set for the next request.

    Of two sets the first gives way to the second. Of more, the first grows from 0.1 to 0.8, the second shrinks by the
    same amount, and the rest share 0.1.

    Source: Liu et al. 2023, "Online Speculative Decoding" (arXiv 2310.07177), as its code mixes two and three sets.

    Args:
        progress: Share of the stream that has passed.
    """
    if num_sets == 2:
        return [1 - progress, progress]
    moved = SWAPPED_SHARE * progress
    first, second = LEAST_SHARE + moved, LEAST_SHARE + SWAPPED_SHARE - moved
    return [first, second, *[(1 - first - second) / (num_sets - 2)] * (num_sets - 2)]


def smooth(sets: Sequence[Sequence[Named]], *, seed: int) -> Iterator[Named]:
    """Yield all requests, each from a random set; an empty set leaves its probability to the rest."""
    draws, rows, total = random.Random(seed), list(map(iter, sets)), sum(map(len, sets))  # noqa: S311 - not for secrets
    remaining = list(map(len, sets))
    for number in range(total):
        left = [index for index, count in enumerate(remaining) if count]
        weights = smooth_probabilities(number / total, len(sets))
        left_weights = [weights[index] for index in left]
        [chosen] = draws.choices(left, left_weights if any(left_weights) else None)
        remaining[chosen] -= 1
        yield next(rows[chosen])

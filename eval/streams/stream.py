"""A stream of requests, opened from its settings or made of what a program iterates over."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from eval.prompts import (
    Prompt,
    Rows,
    UnreadRow,
    as_it_is,
    parse_category,
    parser_of,
    require_object,
    source_name,
    source_rows,
)
from eval.streams.config import Malformed, StreamConfig
from eval.streams.following import Waiting, followed_rows
from eval.streams.mixing import sharp, smooth
from eval.streams.request import Labelled, Request, Skipped, say
from eval.tasks import PromptSource


class RequestStream(Iterator[Request]):
    """Requests one by one; says on stderr where there are fewer than were asked for, and how many rows were skipped."""

    def __init__(
        self, labelled: Iterator[Labelled], skipped: Skipped, *, num_requests: int | None = None, start: int = 0
    ) -> None:
        """Number what is in the stream.

        Args:
            labelled: All of it from its beginning.
            skipped: Where malformed rows of it are noted.
            num_requests: How many there should be; None for as many as there are.
            start: Requests at its beginning that are passed over.
        """
        self.skipped = skipped
        self.num_requests = num_requests
        self.number = 0
        self.start = start
        self._labelled = islice(labelled, num_requests)
        self._ended = False

    @property
    def ended_early(self) -> bool:
        """Whether it has ended before its last request, or before the first one that was wanted."""
        return self._ended and self.number < (self.start if self.num_requests is None else self.num_requests)

    def __next__(self) -> Request:
        """The next request.

        Raises:
            UserError: If a row is no prompt and such are not skipped, or a source cannot be read or holds no prompt.
        """
        while self.number < self.start and self._following() is not None:
            pass
        labelled = self._following()
        if labelled is None:
            raise StopIteration
        return Request(self.number - 1, labelled.prompt, labelled.label)

    def _following(self) -> Labelled | None:
        labelled = None if self._ended else next(self._labelled, None)
        if labelled is not None:
            self.number += 1
        elif not self._ended:
            self._ended = True
            self._tell_end()
        return labelled

    def _tell_end(self) -> None:
        if self.ended_early:
            wanted = f"{self.num_requests} were wanted" if self.num_requests else f"{self.start} were served before"
            say(f"The stream of requests ended early: it has {self.number}, and {wanted}.")
        if self.skipped.places:
            say(f"Stream of requests: {self.skipped.words()}")


def open_stream(config: StreamConfig, *, seed: int, start: int = 0, waiting: Waiting | None = None) -> RequestStream:
    """The requests of a stream, the same ones for the same seed wherever it starts.

    Args:
        config: Where requests are, and how they are mixed.
        seed: Of a smooth mix.
        start: Place of the first one; earlier rows are read again, for they decide which the later ones are.
        waiting: How a followed file is waited on, where not as config says.
    """
    skipped = Skipped(config.malformed)
    waiting = waiting or Waiting(config.idle_s)
    sets = [
        skipped.readable(rows_of(source, config, waiting), partial(labelled_row, source, config.label))
        for source in config.sources
    ]
    if not config.follow:
        sets = list(map(at_least_one, sets, config.sources))
    return RequestStream(mixed(sets, config, seed), skipped, num_requests=config.num_requests, start=start)


def at_least_one(labelled: Iterator[Labelled], source: PromptSource) -> Iterator[Labelled]:
    """All that a source holds.

    Raises:
        UserError: If that is nothing.
    """
    first = next(labelled, None)
    if first is None:
        raise UserError(f"{source_name(source)}: no prompts in it. Give a source with at least one row that is one.")
    yield first
    yield from labelled


def rows_of(source: PromptSource, config: StreamConfig, waiting: Waiting) -> Rows:
    """The rows of a source; no more of one that does not say how many than there are requests, were they all its."""
    if config.follow:
        yield from islice(followed_rows(Path(str(source.path)), waiting), source.num_prompts)
        return
    if source.path is None and source.num_prompts is None and config.label is None and config.malformed == "stop":
        source = source.model_copy(update={"num_prompts": config.num_requests})
    yield from source_rows(source)


def labelled_row(source: PromptSource, label: str | None, row: UnreadRow) -> Labelled | None:
    """The prompt of a row and its label; None for a row that the task leaves out.

    Raises:
        UserError: If it is no prompt, or has no label where a field should hold it.
    """
    value = row.read()
    prompt = parser_of(source)(value, row.where)
    if prompt is None:
        return None
    return Labelled(prompt, default_label(source) if label is None else field_label(value, label, row.where))


def default_label(source: PromptSource) -> str:
    """The name of a source's task, else of its file or data set."""
    return source.task or (source_name(source) if source.path is None else Path(source.path).stem)


def field_label(row: Any, label: str, where: str) -> str:
    """What stands in a row's field.

    Raises:
        UserError: If nothing does.
    """
    require_object(row, where, example=f'{{"{label}": "..."}}')
    value = parse_category(row.get(label), where)
    if value is None:
        raise UserError(f"{where}: has no {label}, which says whose curve it is of. Give each row one, or skip such.")
    return value


def mixed(sets: list[Iterator[Labelled]], config: StreamConfig, seed: int) -> Iterator[Labelled]:
    """The requests of some sets in the order of a mix."""
    if config.mix == "in_order":
        yield from chain.from_iterable(sets)
        return
    if config.label is not None:
        sets = by_label(chain.from_iterable(sets))
    total, sets = bounded(sets, config)
    yield from sharp(sets, total) if config.mix == "sharp" else smooth(sets, total, seed=seed)


def bounded(sets: list[Iterator[Labelled]], config: StreamConfig) -> tuple[int, list[Iterator[Labelled]]]:
    """How many requests a mix has, and its sets, which are read whole where their sizes decide that."""
    if config.num_requests is not None:
        return config.num_requests, sets
    whole = list(map(list, sets))
    sizes = list(map(len, whole))
    total = min(sizes) * len(sizes) if config.mix == "sharp" else sum(sizes)
    return total, list(map(iter, whole))


def by_label(labelled: Iterator[Labelled]) -> list[Iterator[Labelled]]:
    """All of them in sets of one label each, in the order in which labels are met."""
    sets: dict[str, list[Labelled]] = {}
    for each in labelled:
        sets.setdefault(each.label, []).append(each)
    return list(map(iter, sets.values()))


def requests_of(
    rows: Iterable[dict[str, Any] | Prompt],
    *,
    name: str = "requests",
    task: str | None = None,
    label: str | None = None,
    malformed: Malformed = "stop",
    num_requests: int | None = None,
    start: int = 0,
) -> RequestStream:
    """The requests of anything that a program iterates over, one at a time as it gives them.

    Args:
        rows: Rows as a file has them, or prompts.
        name: What messages call them, and their label where nothing else is one.
        task: Which task rows are of; None for the forms of plain rows.
        label: Field of a row that says whose curve its request is of.
        malformed: What a row that is no prompt does.
        num_requests: How many there should be.
        start: How many at their beginning are passed over.

    Raises:
        UserError: As `RequestStream.__next__`.
    """
    source = PromptSource(task=task, name=name)
    skipped = Skipped(malformed)
    unread = (UnreadRow(f"{name}:{number}", partial(as_it_is, row)) for number, row in enumerate(rows, start=1))
    labelled = skipped.readable(unread, partial(labelled_item, source, label))
    return RequestStream(labelled, skipped, num_requests=num_requests, start=start)


def labelled_item(source: PromptSource, label: str | None, row: UnreadRow) -> Labelled | None:
    """As `labelled_row`, of a row or a prompt."""
    prompt = row.read()
    if not isinstance(prompt, Prompt):
        return labelled_row(source, label, row)
    if label is not None:
        raise UserError(f"{row.where}: is a prompt, which has no field {label}. Give rows, or leave label out.")
    return Labelled(prompt, prompt.task.partition("/")[0] if prompt.task else default_label(source))

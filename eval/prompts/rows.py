"""Rows of JSON-lines files and of data sets, each with its place, and the checks that every reader of rows shares."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from architectures.errors import UserError
from architectures.files.reading import parse_json, read_json, require_regular, unreadable
from eval.prompts.page import hub_words
from eval.prompts.source import PromptSource
from eval.prompts.table import TASKS
from eval.tasks.task import HubRows

Parsed = TypeVar("Parsed")

MOST_CHARACTERS = 1 << 24  # of a row
MOST_SPACE = 1 << 10  # before a JSON list
LIST_MIB = 1024  # of a JSON list, which is read whole
MAX_PLACES_SHOWN = 5


@dataclass(frozen=True)
class UnreadRow:
    """A row that nobody has looked at yet.

    Attributes:
        where: Its place, as "file.jsonl:12".
        read: Its value; a UserError where it is none.
    """

    where: str
    read: Callable[[], Any]


Rows = Generator[UnreadRow, None, None]


def load_rows(source: PromptSource, parse: Callable[[Any, str], Parsed | None]) -> list[Parsed]:
    """What the first num_prompts rows of one source are parsed as, each with its place; at least one."""
    with closing(source_rows(source)) as rows:
        found = [parse(row.read(), row.where) for row in rows]
    parsed = [each for each in found if each is not None]
    if not parsed:
        raise UserError(f"{source_name(source)}: no prompts in it. Give a source with at least one row.")
    return parsed


def source_rows(source: PromptSource) -> Rows:
    """The first num_prompts rows of one source, one by one; closed, it closes its file."""
    rows = file_rows(Path(source.path), absent_words(source)) if source.path is not None else dataset_rows(source)
    yield from islice(rows, source.num_prompts)


def as_it_is(row: Any) -> Any:
    """A row that is read already."""
    return row


def source_name(source: PromptSource) -> str:
    """What a message calls a source."""
    return str(source.path or source.name or source.task)


def absent_words(source: PromptSource) -> str:
    """What to do where the file of a source is not there: a named task's rows can be had elsewhere."""
    if source.task is None:
        return "Check the path of this prompt file."
    return (
        f"Rows of task {source.task} are {hub_words(TASKS[source.task].hub)}, on the Hugging Face hub: save them there "
        "as JSON lines, or leave the path out to read them from the hub."
    )


def file_rows(path: Path, absent: str) -> Iterator[UnreadRow]:
    """Each row of a file: of parquet by its name, of a JSON list by its beginning, else of JSON lines.

    Args:
        path: The file.
        absent: The sentence that ends the message where it cannot be read.
    """
    try:
        require_regular(path, remedy="Name a file of JSON lines.")
        is_list = path.suffix == ".json" and begins_a_list(path)
    except OSError as error:
        raise UserError(unreadable(path, error, absent)) from error
    if path.suffix == ".parquet":
        parquet = HubRows(name="parquet", data_files=str(path), split="train", streaming=True)
        return opened_rows(parquet, f"{path}: is no parquet file that `datasets` reads", "Write it anew.", str(path))
    return list_rows(path, absent) if is_list else line_rows(path, absent)


def begins_a_list(path: Path) -> bool:
    """Whether the first thing in a JSON file opens a list."""
    with path.open("rb") as file:
        return file.read(MOST_SPACE).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def list_rows(path: Path, absent: str) -> Iterator[UnreadRow]:
    """Each element of a JSON list."""
    elements = read_json(path, absent, most_mib=LIST_MIB)
    return (UnreadRow(f"{path}[{index}]", partial(as_it_is, row)) for index, row in enumerate(elements))


def line_rows(path: Path, absent: str) -> Iterator[UnreadRow]:
    """Each line of a JSON-lines file; blank lines are passed over but counted.

    Args:
        path: The file.
        absent: The sentence that ends the message where it cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(iter(partial(file.readline, MOST_CHARACTERS + 1), ""), start=1):
                if len(line) > MOST_CHARACTERS:
                    raise UserError(
                        f"{path}:{number}: has over {MOST_CHARACTERS:,} characters. Write one JSON object per line."
                    )
                if line.strip():
                    yield line_row(line, f"{path}:{number}")
    except OSError as error:
        raise UserError(unreadable(path, error, absent)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error}). Save it as UTF-8 JSON lines.") from error


def line_row(line: str | bytes, where: str) -> UnreadRow:
    """The row of a line of JSON."""
    return UnreadRow(where, partial(parse_json, line, where, "Write one JSON object per line."))


def dataset_rows(source: PromptSource) -> Iterator[UnreadRow]:
    """Each row of a split: a hub name, a local folder, or where a named task's rows are."""
    hub = hub_rows(source)
    if hub.streaming and source.num_prompts is None:
        raise UserError(
            f"{source.name or f'task {source.task}'}: its rows come one by one and may be more than anyone waits for. "
            "Say with num_prompts how many to read, or give a file of rows."
        )
    location = f"{source.name or source.task}/{source.config}" if source.config else f"{source.name or source.task}"
    fact = f"{dataset_label(source, hub)}: cannot be loaded"
    return opened_rows(hub, fact, dataset_remedy(source), f"{location}[{hub.split}]")


def opened_rows(hub: HubRows, fact: str, remedy: str, location: str) -> Iterator[UnreadRow]:
    """Each row of what `datasets` opens.

    Args:
        hub: What that is.
        fact: What is told where it does not, before the reason.
        remedy: What is told behind it.
        location: Where the rows are.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    settings = {name: value for name, value in asdict(hub).items() if name not in ("name", "config")}
    try:
        for number, row in enumerate(load_dataset(hub.name, hub.config, **settings), start=1):
            yield UnreadRow(f"{location}:{number}", partial(as_it_is, row))
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{fact} ({' '.join(str(error).split())}). {remedy}") from error


def hub_rows(source: PromptSource) -> HubRows:
    """Where the rows of a source are that names no file: at its own name, or where its task has them."""
    if source.name is not None:
        return HubRows(name=source.name, config=source.config, split=str(source.split), streaming=source.streaming)
    own = TASKS[str(source.task)].hub
    return replace(own, config=source.config or own.config, split=source.split or own.split)


def dataset_label(source: PromptSource, hub: HubRows) -> str:
    """Which data set it is, for a message."""
    named = ("" if source.task is None else f"task {source.task}, ") + f"dataset {hub.data_files or hub.name}"
    return named + (f", config {hub.config}" if hub.config else "") + f", split {hub.split}"


def dataset_remedy(source: PromptSource) -> str:
    """What helps where a data set cannot be loaded."""
    if source.task is None or source.name is not None:
        return "Check its name, config and split, and the network."
    return f"Check the network, and with a gated one your login, or give a file of its rows: task {source.task}, path."


def first_field(row: Any, fields: Sequence[str], where: str, *, example: str) -> str:
    """The first of some fields that a row has; the example is shown to whoever has none."""
    require_object(row, where, example=example)
    field = first_there(fields, row)
    if field is None:
        known = ", ".join(row) or "no fields"
        raise UserError(
            f"{where}: has none of the known fields {', '.join(fields)}; it has {known}. "
            f"Give each row one of them, e.g. {example}."
        )
    return field


def first_there(fields: Sequence[str], row: Mapping[str, Any]) -> str | None:
    """The first of some fields that a row has; `datasets` fills those that a row lacks with null."""
    return next((name for name in fields if row.get(name) is not None), None)


def require_object(row: Any, where: str, *, example: str) -> None:
    """Raise UserError unless a row is a JSON object."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: is {describe(row)}, not a JSON object. Write one object per row, e.g. {example}.")


def checked_text(value: Any, name: str, where: str) -> str:
    """The value, if it is a text with something in it that UTF-8 can hold."""
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {name} must be a non-empty text, got {describe(value)}. Mend or delete this row.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"{where}: {name} holds half a surrogate pair, which is no character. Mend or delete this row.")
    return value


def describe(value: Any) -> str:
    """What a JSON value is, in words a person editing the file would use."""
    if value is None:
        return "null"
    if value in ("", [], {}):
        return f"an empty {'text' if value == '' else 'list' if value == [] else 'object'}"
    try:
        shown = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:  # what json could just read, it cannot write from a deeper place of the stack
        return "a value of many levels"
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


def source_words(sources: Sequence[str]) -> str:
    """Where some rows are, the first of them if there are many."""
    return ", ".join(sources[:MAX_PLACES_SHOWN]) + (", ..." if len(sources) > MAX_PLACES_SHOWN else "")

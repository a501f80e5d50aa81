"""Files of answered requests, several over the same stream: each an arm of a comparison."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from architectures.errors import UserError
from architectures.files.typed_file import parsed
from eval.prompts import UnreadRow, file_rows
from eval.records.request import SCHEMA, RequestRecord

REMEDY = "Name a file of answered requests, as <run>/online/records.jsonl is one."
FORM = TypeAdapter(RequestRecord)


@dataclass(frozen=True)
class Arm:
    """One draft over a stream: static, offline, online.

    Attributes:
        name: What tables and plots call it.
        records: Of its requests, in their order.
    """

    name: str
    records: tuple[RequestRecord, ...]


def read_arms(paths: Sequence[Path], names: Sequence[str] = ()) -> list[Arm]:
    """The arms in some files, which must be of the same requests.

    Args:
        paths: At least one file.
        names: One for each, or none: then each is called as its file, or as the run in which that is.

    Raises:
        UserError: If a file cannot be read, names do not fit, or the requests differ.
    """
    names = names or [name_of(path) for path in paths]
    if len(names) != len(paths) or len(set(names)) < len(names):
        raise UserError(
            f"--names must name each of the {len(paths)} files once, got {', '.join(names)}. Give another name to each."
        )
    arms = [Arm(name, read_requests(path)) for name, path in zip(names, paths, strict=True)]
    for path, arm in zip(paths[1:], arms[1:], strict=True):
        require_same_requests(arms[0], paths[0], arm, path)
    return arms


def name_of(path: Path) -> str:
    """What a file is called: one of a run as the run."""
    parts = path.absolute().parts
    return parts[-3] if path.name == "records.jsonl" and parts[-2] == "online" else path.stem


def read_requests(path: Path) -> tuple[RequestRecord, ...]:
    """The records of a file in the order of their requests; a line that only holds the schema may come first.

    Raises:
        UserError: If it holds no record, a line is none, or a request stands there twice.
    """
    records = sorted(records_in(path), key=lambda record: record.request)
    if not records:
        raise UserError(f"{path}: holds no request. {REMEDY}")
    for before, record in pairwise(records):
        if before.request == record.request:
            raise UserError(f"{path}: holds request {record.request} twice. {REMEDY}")
    return tuple(records)


def records_in(path: Path) -> Iterator[RequestRecord]:
    """The records of a file, line by line."""
    for number, row in enumerate(file_rows(path, REMEDY)):
        value = row.read()
        if number == 0 and isinstance(value, dict) and "request" not in value:
            require_schema(value, path)
        else:
            yield checked_record(value, row)


def require_schema(header: dict[str, Any], path: Path) -> None:
    """Raise UserError unless a file's first line says that requests follow."""
    if header.get("schema") != SCHEMA:
        raise UserError(f"{path}: schema must be {SCHEMA}, got {header.get('schema', 'none')}. {REMEDY}")


def checked_record(value: Any, row: UnreadRow) -> RequestRecord:
    """The record of a line, whose parts fit each other.

    Raises:
        UserError: If it is none.
    """
    record = parsed(FORM, json.dumps(value), row.where, REMEDY)
    proposed = [len(proposal) for proposal in record.proposals]
    if len(record.answer_ids) != record.tokens:
        raise UserError(f"{row.where}: tokens must be those of answer_ids, got {record.tokens}. {REMEDY}")
    if (
        (record.proposals and len(proposed) != len(record.kept))  # none where sampled answers are replayed
        or any(map(int.__gt__, record.kept, proposed))
        or min(record.kept, default=0) < 0
    ):
        raise UserError(f"{row.where}: kept must say of each round's proposals how many were kept. {REMEDY}")
    return record


def require_same_requests(first: Arm, first_path: Path, other: Arm, path: Path) -> None:
    """Raise UserError unless two arms answered the same requests, of the same sources."""
    ours, theirs = ({record.request: record.source for record in arm.records} for arm in (first, other))
    apart = sorted(number for number in {*ours, *theirs} if ours.get(number) != theirs.get(number))
    if apart:
        raise UserError(
            f"{path}: must hold the requests of {first_path}, and request {apart[0]} is {words_of(theirs, apart[0])} "
            f"here and {words_of(ours, apart[0])} there. Compare drafts on the same stream."
        )


def words_of(sources: dict[int, str], number: int) -> str:
    """Whose a request is."""
    return f"of {sources[number]}" if number in sources else "absent"

"""Folders of JSON-lines shards that a killed run can continue: each shard whole or absent, all made the same way.

settings.json in such a folder says, for each name of shards, what they are made from and how many there will be.
"""

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from architectures.checkpoints.manifest import provenance
from architectures.errors import UserError
from architectures.files.atomic import write_json, write_text
from architectures.files.reading import checked, parse_json, read_json_object, require_regular

SETTINGS_NAME = "settings.json"
REWRITTEN = "Delete this file and run its stage again: it is rewritten."
MOST_SHARDS = 10**6
LOCK_NAME = "settings.lock"
Item = TypeVar("Item")


class Claim(TypedDict):
    """What settings.json says of one name."""

    settings: dict[str, Any]
    num_shards: Annotated[int, Field(ge=0, le=MOST_SHARDS)]
    tokenizer: NotRequired[dict[str, Any]]
    versions: NotRequired[dict[str, Any]]


CLAIMS = TypeAdapter(dict[str, Claim])


def claim_shards(
    folder: Path,
    name: str,
    settings: Mapping[str, Any],
    *,
    num_shards: int,
    tokenizer: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Record how the shards of one name are made; returns the paths of all of them, made or not.

    Args:
        folder: Where shards go; other names may live there too.
        name: First part of their file names.
        settings: Everything that decides their contents, as JSON values.
        num_shards: How many there will be.
        tokenizer: What their token ids mean, from loading.tokenizer_identity, for readers that have no target.

    Raises:
        UserError: If shards of this name were begun with other settings.
    """
    claims = read_claims(folder)
    if name in claims:
        refuse_changes(folder, name, claims[name]["settings"], settings)
    else:
        claim: dict[str, Any] = {"settings": dict(settings), "num_shards": num_shards}
        if tokenizer is not None:
            claim["tokenizer"] = dict(tokenizer)
        claim["versions"] = provenance()["versions"]
        write_json({**claims, name: claim}, folder / SETTINGS_NAME)
    return shard_paths(folder, name, num_shards)


def write_shard(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines, whole or not at all."""
    write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), path)


def read_shard(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of one shard."""
    for where, line in lines_of(path):
        yield parse_json(line, where, REWRITTEN)


def shard_lines(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """(file and line, row as it stands there) of all shards of one name, in order.

    Raises:
        UserError: If a shard is missing.
    """
    claims = read_claims(folder)
    if name not in claims:
        raise UserError(f"{folder}: holds no {name} answers. Run the stage that writes them.")
    paths = shard_paths(folder, name, claims[name]["num_shards"])
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise UserError(
            f"{folder}: {len(missing)} of {len(paths)} shards are missing, the first is {missing[0]}. "
            "Run the stage that writes them again: it continues."
        )
    for path in paths:
        yield from lines_of(path)


def lines_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """The same of one shard."""
    require_regular(path, remedy=REWRITTEN)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield f"{path}:{number}", line


def row_location(folder: Path, name: str, row: int) -> str:
    """The file and line of a row of all shards, counted from 0: "data/train-00001.jsonl:7"."""
    for path in shard_paths(folder, name, read_claims(folder)[name]["num_shards"]):
        with path.open("rb") as file:
            num_rows = sum(1 for _ in file)
        if row < num_rows:
            return f"{path}:{row + 1}"
        row -= num_rows
    raise IndexError(f"{folder} holds fewer {name} rows.")


def shard_paths(folder: Path, name: str, num_shards: int) -> list[Path]:
    """Where the shards of one name are or will be."""
    return [folder / f"{name}-{index:05d}.jsonl" for index in range(num_shards)]


def read_claims(folder: Path) -> dict[str, Claim]:
    """What settings.json says for each name; empty where there is none.

    Raises:
        UserError: If it is no such file.
    """
    path, remedy = folder / SETTINGS_NAME, f"Delete {folder} and run its stage again."
    return checked(CLAIMS, read_json_object(path, remedy), str(path), remedy) if path.exists() else {}


def refuse_changes(folder: Path, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise UserError naming every setting that differs, with both values."""
    changes = [
        f"{key} was {shorten(old.get(key))}, is {shorten(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if changes:
        raise UserError(
            f"{folder}: its {name} answers were made with other settings: {'; '.join(changes)}. "
            "Choose another run_name, or delete this folder to make them again."
        )


def shorten(value: Any) -> str:
    """A setting as a message shows it: fingerprints by their first twelve digits."""
    is_fingerprint = isinstance(value, str) and len(value) == 64
    return f"{value[:12]}…" if is_fingerprint else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Part:
    """Every n-th file, from the i-th on.

    Attributes:
        number: From 1.
        of: How many parts there are.
    """

    number: int
    of: int

    def of_all(self, files: Sequence[Item]) -> Sequence[Item]:
        """Those of some files that are this part's."""
        return files[self.number - 1 :: self.of]


EVERY_FILE = Part(1, 1)


def missing_shards(folder: Path, names: Sequence[str]) -> list[Path]:
    """Files of some names that are not there yet."""
    claims = read_claims(folder)
    paths = [path for name in names for path in shard_paths(folder, name, claims[name]["num_shards"])]
    return [path for path in paths if not path.is_file()]


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """A block that no two jobs on a folder are in: settings.json is read, added to and written again in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_NAME).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_known_ids(texts: Iterable[Sequence[int]], folder: Path, name: str, vocab_sizes: Mapping[Path, int]) -> None:
    """Refuse answers with a token id that one of the models has no row for.

    Args:
        texts: The ids of every answer of a name with its prompt, in the order in which they were read.
        folder: Of the files they were read from.
        name: Of these files, such as "train".
        vocab_sizes: Of every model that reads them, by its folder.

    Raises:
        UserError: Naming file and line, the first such id, and the model with the smallest vocabulary.
    """
    smallest = min(vocab_sizes, key=lambda model: vocab_sizes[model])
    for row, ids in enumerate(texts):
        unknown = unknown_id(ids, vocab_sizes[smallest])
        if unknown is not None:
            raise UserError(
                f"{row_location(folder, name, row)}: token id {unknown} is beyond the vocabulary of {smallest}, which "
                f"has vocab_size {vocab_sizes[smallest]}. Answers and models must share their token ids: run the stage "
                "that wrote this file again, or cut the draft out of its target again."
            )


def require_rows_for_row(ids: Sequence[int], model: Path, vocab_size: int, where: str) -> None:
    """Refuse a row of data whose tokens a model has no rows for: its tokenizer has tokens beyond its vocabulary.

    Raises:
        UserError: Naming the row, the first such id, and the model.
    """
    unknown = unknown_id(ids, vocab_size)
    if unknown is not None:
        raise UserError(
            f"{where}: holds token id {unknown}, which is beyond the vocabulary of {model}, vocab_size {vocab_size}. "
            "Mend or delete this row, or use the tokenizer the model was made with."
        )


def unknown_id(ids: Sequence[int], vocab_size: int) -> int | None:
    """The first of some ids that a vocabulary of this size does not have; None where it has them all."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return None
    return next(each for each in ids if not 0 <= each < vocab_size)

"""What a cache folder says of itself: its manifest, and while it is written a journal of the shards that are whole.

    <run>/teacher_cache/manifest.json             inputs, what each split keeps, size and sha256 of every file
                        capture.jsonl             until the manifest is there: the inputs, then a line for each shard
                        train-index.safetensors   which rows belong to which answer
                        train-00000.safetensors   rows of consecutive answers; eval-* likewise

No torch: whether a cache is current is known at once.
"""

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from architectures.checkpoints.manifest import (
    MANIFEST_NAME,
    changed_inputs,
    read_manifest,
)
from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.files.file_hashes import read_sha256
from architectures.files.reading import read_text
from architectures.files.typed_file import checked, parsed
from architectures.progress.track import track
from architectures.settings.recipe_command import command_of

# Of files, names and journal. Where shards are cut belongs to it: a journal knows them by number alone.
FORMAT = "widedraft.teacher_cache/2"
JOURNAL_NAME = "capture.jsonl"
OTHER_JOURNALS = "capture-*.jsonl"  # of processes but the first


@dataclass(frozen=True)
class FileRecord:
    """A file of a cache as it was written."""

    num_bytes: int
    sha256: str


class Head(TypedDict):
    """The first line of a journal."""

    format: str
    inputs: dict[str, Any]


class Row(TypedDict):
    """Any other line."""

    name: str
    num_bytes: int
    sha256: str


FILES, HEAD, ROW = TypeAdapter(dict[str, FileRecord]), TypeAdapter(Head), TypeAdapter(Row)


def remedy() -> str:
    """What mends a damaged cache."""
    return f"Delete the folder and run {command_of('cache')}."


def recorded_files(folder: Path) -> dict[str, FileRecord]:
    """Every file a finished cache should hold, by name.

    Raises:
        UserError: If the cache is not finished, or of a format this version does not read.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise UserError(f"{folder}: holds no finished teacher cache. Run {command_of('cache')}: it continues.")
    refuse_other_format(folder, manifest.get("format"))
    return checked(FILES, manifest.get("files"), f"{folder / MANIFEST_NAME}: files", remedy())


def refuse_other_format(folder: Path, written: str | None) -> None:
    """Raise UserError if a cache, finished or not, was written in a format this version does not read."""
    if written != FORMAT:
        raise UserError(
            f"{folder}: its format is {written!r}, this version reads {FORMAT!r}. "
            f"Delete {folder} and run {command_of('cache')}."
        )


def ill_sized_files(folder: Path) -> list[str]:
    """Names of the files of a finished cache that are missing or have another size than was written; reads none."""
    return [
        name
        for name, record in recorded_files(folder).items()
        if not (folder / name).is_file() or (folder / name).stat().st_size != record.num_bytes
    ]


def is_whole(folder: Path) -> bool:
    """Whether there is a finished cache, and no file of it is missing or cut short."""
    return read_manifest(folder) is not None and not ill_sized_files(folder)


def refuse_ill_sized(folder: Path) -> None:
    """Raise UserError naming the first file that is missing or cut short."""
    damaged = ill_sized_files(folder)
    if damaged:
        raise UserError(
            f"{folder / damaged[0]}: missing, or not as long as it was written; {len(damaged)} such files. "
            f"Run {command_of('cache')}: it writes them again."
        )


def verify_files(folder: Path) -> int:
    """Compare the checksum of every file of a finished cache; returns how many there are.

    Raises:
        UserError: Naming the files that are not as they were written.
    """
    records = recorded_files(folder)
    damaged = sorted(records.keys() - intact_files(folder, records).keys())
    if damaged:
        raise UserError(
            f"{folder}: not as they were written: {', '.join(damaged)}. "
            f"Delete these files and run {command_of('cache')}: it writes them again."
        )
    return len(records)


def intact_files(folder: Path, records: Mapping[str, FileRecord]) -> dict[str, FileRecord]:
    """The records whose files are as they were written, by checksum; a disk that errs leaves times as they were."""
    checked = track(records.items(), description=f"checking {folder.name}", total=len(records))
    return {
        name: record
        for name, record in checked
        if (folder / name).is_file() and read_sha256(folder / name) == record.sha256
    }


class Journal:
    """The shards of a cache that are written, kept across interruptions.

    Of several processes each has a file of its own, as no disk promises that two may add lines to one; whoever begins
    anew reads all of them.

    Args:
        folder: Of the cache; made if it is not there.
        inputs: What the cache is made from.

    Raises:
        UserError: If the folder holds a cache, or a part of one, that was made from other inputs.
    """

    def __init__(self, folder: Path, inputs: Mapping[str, Any]):
        self.folder = folder
        self.path = folder / JOURNAL_NAME
        self.inputs = dict(inputs)
        self.files: dict[str, FileRecord] = {}
        self.begun_with: frozenset[str] = frozenset()
        manifest = read_manifest(folder)
        if manifest is not None:  # it was finished, and a file was lost since then
            self._refuse_others(manifest["inputs"])
            self.files = recorded_files(folder)
        elif self.path.is_file():
            for path in (self.path, *sorted(folder.glob(OTHER_JOURNALS))):
                self.files |= self._read(path)

    def begin(self, intact: Mapping[str, FileRecord]) -> None:
        """Write down the files that are whole, and no others; the cache counts as unfinished from now on."""
        self.files, self.begun_with = dict(intact), frozenset(intact)
        lines = [self._head(), *(journal_line(name, record) for name, record in intact.items())]
        write_text("".join(lines), self.path)
        for path in self.folder.glob(OTHER_JOURNALS):
            path.unlink()
        (self.folder / MANIFEST_NAME).unlink(missing_ok=True)

    def of_process(self, index: int) -> "Journal":
        """The journal of what one of several processes writes, once the first has begun this one."""
        if index == 0:
            return self
        own = copy(self)
        own.path, own.files = self.folder / OTHER_JOURNALS.replace("*", str(index)), {}
        write_text(self._head(), own.path)
        return own

    def add(self, name: str, record: FileRecord) -> None:
        """Note that a file is whole. Call after it is."""
        self.files[name] = record
        with self.path.open("a", encoding="utf-8") as file:
            file.write(journal_line(name, record))

    def _head(self) -> str:
        """The first line: what the cache is made from."""
        return json.dumps({"format": FORMAT, "inputs": self.inputs}) + "\n"

    def _read(self, path: Path) -> dict[str, FileRecord]:
        """What an interrupted capture wrote; its last line may be cut short."""
        _, *lines = read_text(path, remedy=remedy()).split("\n")  # the last is empty, or cut short
        head = journal_head(path)
        refuse_other_format(self.folder, head["format"])
        self._refuse_others(head["inputs"])
        rows = [parsed(ROW, line, f"{path}:{number}", remedy()) for number, line in enumerate(lines[:-1], start=2)]
        return {row["name"]: FileRecord(row["num_bytes"], row["sha256"]) for row in rows}

    def _refuse_others(self, inputs: Mapping[str, Any]) -> None:
        changed = changed_inputs({"inputs": inputs}, self.inputs)
        if changed:
            raise UserError(
                f"{self.folder} was begun from another {', '.join(changed)} than the recipe now asks for. "
                f"Choose another run_name, or delete {self.folder}."
            )


def remove_journals(folder: Path) -> None:
    """Of a cache that is finished."""
    for path in (folder / JOURNAL_NAME, *folder.glob(OTHER_JOURNALS)):
        path.unlink()


def journal_head(path: Path) -> Head:
    """The first line of a journal: what the cache is made from."""
    with path.open(encoding="utf-8") as file:
        return parsed(HEAD, file.readline(), f"{path}:1", remedy())


def journal_line(name: str, record: FileRecord) -> str:
    """A file as a line of the journal."""
    return json.dumps({"name": name, **asdict(record)}) + "\n"

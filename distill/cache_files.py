"""The stage `widedraft cache`, and the manifest of a cache folder. No torch until it writes.

    <run>/teacher_cache/manifest.json             inputs, what each split keeps, size and sha256 of every file
                        capture.json              until the manifest is there: format and inputs
                        train-index.safetensors   which rows belong to which answer
                        train-00000.safetensors   rows of consecutive answers; eval-* likewise

Shards are there whole, or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from architectures.errors import UserError
from architectures.files import checked, read_json_object, write_json
from architectures.hashes import read_sha256
from architectures.manifest import MANIFEST_NAME, changed_inputs, read_manifest
from architectures.progress import track
from architectures.settings import command_of

# A change of either limit needs another FORMAT.
MAX_SHARD_BYTES = 2**28  # of memory while a shard is made
MAX_SHARD_TOKENS = 2**16  # of work that an interruption loses


def shard_tokens(token_bytes: int, *, most_tokens: int = MAX_SHARD_TOKENS, most_bytes: int = MAX_SHARD_BYTES) -> int:
    """Answer tokens of a full shard, whose rows are of so many bytes."""
    return min(most_tokens, max(1, most_bytes // token_bytes))


FORMAT = "widedraft.teacher_cache/2"  # of files and names, and where shards are cut
CAPTURE_NAME = "capture.json"


@dataclass(frozen=True)
class FileRecord:
    """A file of a cache as it was written."""

    num_bytes: int
    sha256: str


FILES = TypeAdapter(dict[str, FileRecord])


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
    damaged = [
        name
        for name, record in track(records.items(), description=f"checking {folder.name}", total=len(records))
        if not (folder / name).is_file() or read_sha256(folder / name) != record.sha256
    ]
    if damaged:
        raise UserError(
            f"{folder}: not as they were written: {', '.join(sorted(damaged))}. "
            f"Delete these files and run {command_of('cache')}: it writes them again."
        )
    return len(records)


def require_same_capture(folder: Path, inputs: Mapping[str, Any]) -> None:
    """Check what is in a cache's folder; files of a finished one that are not as long as written are deleted.

    Raises:
        UserError: If the folder holds a cache, or a part of one, from other inputs or of another format.
    """
    path, manifest = folder / CAPTURE_NAME, read_manifest(folder)
    begun = read_json_object(path, remedy()) if manifest is None and path.is_file() else manifest
    if begun is not None:
        refuse_other_format(folder, begun.get("format"))
        changed = changed_inputs(begun, inputs)
        if changed:
            raise UserError(
                f"{folder} was begun from another {', '.join(changed)} than the recipe now asks for. "
                f"Choose another run_name, or delete {folder}."
            )
    if manifest is not None:  # it was finished, and a file was lost since then
        for name in ill_sized_files(folder):
            (folder / name).unlink(missing_ok=True)


def begin_capture(folder: Path, inputs: Mapping[str, Any]) -> None:
    """Claim a folder for a cache, which counts as unfinished from now on."""
    write_json({"format": FORMAT, "inputs": dict(inputs)}, folder / CAPTURE_NAME)
    (folder / MANIFEST_NAME).unlink(missing_ok=True)


def end_capture(folder: Path) -> None:
    """Of a cache that is finished."""
    (folder / CAPTURE_NAME).unlink()


def record_file(path: Path) -> FileRecord:
    """Size and checksum of a file that an earlier capture wrote."""
    return FileRecord(path.stat().st_size, read_sha256(path))

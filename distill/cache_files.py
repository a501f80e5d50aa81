"""Files and manifest of a teacher cache, the stage `widedraft cache`. No torch until it writes.

    <run>/teacher_cache/manifest.json             inputs, contents of each split, size and sha256 of every file
                        capture.json              until the manifest exists: format and inputs
                        train-index.safetensors   which rows belong to which response
                        train-00000.safetensors   rows of consecutive responses; also eval-*

Shards are written atomically.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from architectures.console import track
from architectures.errors import UserError
from architectures.files import checked, read_json_object
from architectures.manifest import MANIFEST_NAME, changed_inputs, read_manifest, read_sha256
from architectures.settings import command_of

FORMAT = "widedraft.teacher_cache/2"  # of files and names, and of shard boundaries
CAPTURE_NAME = "capture.json"


@dataclass(frozen=True)
class FileRecord:
    """Size and checksum of a cache file as written."""

    num_bytes: int
    sha256: str


FILES = TypeAdapter(dict[str, FileRecord])


def hint() -> str:
    return f"Delete the directory and run {command_of('cache')}."


def recorded_files(folder: Path) -> dict[str, FileRecord]:
    """Return the files of a finished cache.

    Raises:
        UserError: If the cache is not finished, or its format is not supported.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise UserError(f"{folder}: contains no complete teacher cache. Run {command_of('cache')}: it continues.")
    reject_other_format(folder, manifest.get("format"))
    return checked(FILES, manifest.get("files"), f"{folder / MANIFEST_NAME}: files", hint())


def reject_other_format(folder: Path, written: str | None) -> None:
    if written != FORMAT:
        raise UserError(
            f"{folder}: its format is {written!r}, but this version reads {FORMAT!r}. "
            f"Delete {folder} and run {command_of('cache')}."
        )


def ill_sized_files(folder: Path) -> list[str]:
    """List files of a finished cache that are missing or of a wrong size; reads no contents."""
    return [
        name
        for name, record in recorded_files(folder).items()
        if not (folder / name).is_file() or (folder / name).stat().st_size != record.num_bytes
    ]


def is_whole(folder: Path) -> bool:
    return read_manifest(folder) is not None and not ill_sized_files(folder)


def verify_files(folder: Path) -> int:
    """Verify the checksums of a finished cache; return the number of files.

    Raises:
        UserError: With the names of missing or damaged files.
    """
    records = recorded_files(folder)
    damaged = [
        name
        for name, record in track(records.items(), description=f"checking {folder.name}", total=len(records))
        if not (folder / name).is_file() or read_sha256(folder / name) != record.sha256
    ]
    if damaged:
        raise UserError(
            f"{folder}: checksums differ: {', '.join(sorted(damaged))}. "
            f"Delete these files and run {command_of('cache')}: it writes them again."
        )
    return len(records)


def require_same_capture(folder: Path, inputs: Mapping[str, Any]) -> None:
    """Check that a cache directory has the given inputs; delete wrong-sized files of a finished cache.

    Raises:
        UserError: If the directory has a cache, finished or not, of other inputs or another format.
    """
    path, manifest = folder / CAPTURE_NAME, read_manifest(folder)
    begun = read_json_object(path, hint()) if manifest is None and path.is_file() else manifest
    if begun is not None:
        reject_other_format(folder, begun.get("format"))
        changed = changed_inputs(begun, inputs)
        if changed:
            raise UserError(
                f"{folder} was started with another {', '.join(changed)} than the recipe's. "
                f"Choose another run_name, or delete {folder}."
            )
    if manifest is not None:  # it was finished, and a file was lost later
        for name in ill_sized_files(folder):
            (folder / name).unlink(missing_ok=True)


def record_file(path: Path) -> FileRecord:
    return FileRecord(path.stat().st_size, read_sha256(path))

"""sha256 of files, remembered on this machine so that a large file is read once. No torch.

A file counts as unchanged while its size, both of its times, its inode and its device are those it was hashed with; the
change time cannot be put back by `os.utime` or `cp -p`. Nothing is remembered of a file that was written less than
SETTLED_NS before, as git does with its index: two writes within one tick of a file system's clock leave the same times.

Records are files below WIDEDRAFT_CACHE, else XDG_CACHE_HOME/widedraft or ~/.cache/widedraft, which may be deleted at
any time.
"""

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from architectures.errors import UserError
from architectures.files.atomic import write_json
from architectures.files.reading import MIB, read_json_object, require_regular, unreadable
from architectures.progress.track import track

REMEMBERED_BYTES = 8 * MIB  # a smaller file is hashed in the time that asking for it takes
LONG_BYTES = 2048 * MIB  # from here on progress is shown
SETTLED_NS = 2_000_000_000  # two seconds: the coarsest clock of a file system, FAT's
MAX_THREADS = 8


def sha256_of_file(path: Path) -> str:
    """sha256 of a whole file, links followed; UserError if it is no regular file or cannot be read."""
    try:
        require_regular(path, remedy="Check the path.")
        before, begun_ns = file_state(path), time.time_ns()
        if (known := recall(path, before)) is not None:
            return known
        sha256 = read_sha256(path)
        if file_state(path) == before and begun_ns - max(before[1], before[2]) >= SETTLED_NS:
            remember(path, before, sha256)
    except OSError as error:
        raise UserError(unreadable(path, error, "Check the path.")) from error
    return sha256


def read_sha256(path: Path) -> str:
    """sha256 of a whole file, read now, whatever is remembered."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_files(paths: Sequence[Path], *, description: str) -> list[str]:
    """sha256 of whole files, in their order, several read at a time; errors as for `sha256_of_file`."""
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, MAX_THREADS)) as pool:
        hashes = pool.map(sha256_of_file, paths)
        if sum(path.stat().st_size for path in paths if path.exists()) >= LONG_BYTES:
            return list(track(hashes, description=description, total=len(paths)))
        return list(hashes)


def file_state(path: Path) -> list[int]:
    """Size, modification and change time, inode and device: what a file cannot keep when its content changes."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def recall(path: Path, state: list[int]) -> str | None:
    """The remembered sha256 of a file in this state; None if there is none."""
    record = record_file(path)
    if state[0] < REMEMBERED_BYTES or record is None:
        return None
    try:
        known = read_json_object(record, "")
    except UserError:  # there is none, or it is damaged
        return None
    return known.get("sha256") if known.get("state") == state else None


def remember(path: Path, state: list[int], sha256: str) -> None:
    """Keep the sha256 of a large file, if there is a place for it."""
    record = record_file(path)
    if state[0] < REMEMBERED_BYTES or record is None:
        return
    try:
        write_json({"path": os.path.realpath(path), "state": state, "sha256": sha256}, record)
    except OSError:  # read-only or full: the file will be read again
        return


def record_file(path: Path) -> Path | None:
    """Where the hash of a file is remembered; None for a user without a home."""
    folder = cache_folder()
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
    return None if folder is None else folder / "file_hashes" / f"{name}.json"


def cache_folder() -> Path | None:
    """Where this user's programs keep what can be made again; None for a user without a home."""
    if named := os.environ.get("WIDEDRAFT_CACHE"):
        return Path(named)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "widedraft"
    except RuntimeError:  # no HOME, and no entry of this user
        return None

"""sha256 of files, every byte of them, remembered on this machine so that a large file is read once. No torch.

A file counts as unchanged while its size, both of its times, its inode and its device are those it was hashed with. The
change time sees what the modification time hides: nothing but the system sets it, so `os.utime` and `cp -p` leave it
new. Two writes within one tick of a file system's clock leave the same times; so nothing is remembered of a file that
was written less than SETTLED_NS before, as git does with its index.

Links are followed first: a file in a hub cache is remembered once, as the blob it is, and by what was read in it. The
blob's name, which for large files is the hash the hub has, is never believed: it says what was downloaded, not what is
there now, and what is remembered of the blob says that already.

What is remembered stands in small files below WIDEDRAFT_CACHE, else below XDG_CACHE_HOME/widedraft or
~/.cache/widedraft. They may be deleted at any time; one that is missing, damaged or cannot be written costs another
reading of its file and nothing else.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from architectures.errors import UserError
from architectures.files.atomic import write_json
from architectures.files.reading import MIB, read_json_object, require_regular, unreadable
from architectures.progress.track import track

CACHE_VARIABLE = "WIDEDRAFT_CACHE"
REHASH_VARIABLE = "WIDEDRAFT_REHASH_FROM"  # nanoseconds since 1970; also seen by the processes a command starts
REMEMBERED_BYTES = 8 * MIB  # a smaller file is hashed in the time that asking for it takes
LONG_BYTES = 2048 * MIB  # from here on progress is shown
SETTLED_NS = 2_000_000_000  # two seconds: the coarsest clock of a file system, FAT's
MAX_THREADS = 8
POLL_S = 0.2
REMEDY = "Check the path."


@dataclass(frozen=True)
class FileState:
    """What a file cannot keep when its content changes."""

    num_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @property
    def written_ns(self) -> int:
        """When it was last written or given other times."""
        return max(self.mtime_ns, self.ctime_ns)


def sha256_of_file(path: Path) -> str:
    """sha256 of a whole file, remembered if it is large; errors as for `sha256_of_files`."""
    return sha256_of_files([path], description=f"hashing {path.name}")[0]


def sha256_of_files(paths: Sequence[Path], *, description: str) -> list[str]:
    """sha256 of whole files, in their order; those that are not remembered are read several at a time.

    Args:
        paths: Regular files, or links to some.
        description: Said while reading takes long.

    Raises:
        UserError: If one cannot be read.
    """
    recalled = [recall(path) for path in paths]
    unknown = [path for path, sha256 in zip(paths, recalled, strict=True) if sha256 is None]
    hashed = iter(hash_files(unknown, description=description))
    return [next(hashed) if sha256 is None else sha256 for sha256 in recalled]


def rehash_from_now() -> None:
    """Forget, for this process and those it starts, what was remembered before now."""
    os.environ[REHASH_VARIABLE] = str(time.time_ns())


def hash_files(paths: Sequence[Path], *, description: str) -> list[str]:
    """sha256 of whole files, read now, and remembered where that is safe."""
    if not paths:
        return []
    num_bytes = sum(state_of(path).num_bytes for path in paths)
    pieces: SimpleQueue[int] = SimpleQueue()
    stopped = Event()
    with ThreadPoolExecutor(max_workers=min(len(paths), os.cpu_count() or 1, MAX_THREADS)) as pool:
        futures = [pool.submit(hash_file, path, pieces.put, stopped) for path in paths]
        try:
            show_progress(finished_mib(futures, pieces), num_bytes, description)
        finally:
            stopped.set()  # Ctrl-C ends the threads too
    return [future.result() for future in futures]


def show_progress(steps: Iterable[None], num_bytes: int, description: str) -> None:
    """Go through the steps, one a MiB; say how far they are if there are many."""
    if num_bytes >= LONG_BYTES:
        steps = track(steps, description=f"{description} (MiB)", total=num_bytes // MIB)
    for _ in steps:
        pass


def finished_mib(futures: Iterable[Future[str]], pieces: "SimpleQueue[int]") -> Iterator[None]:
    """Yield once for each whole MiB that was hashed, until all files are."""
    waiting, num_bytes, yielded_mib = set(futures), 0, 0
    while waiting:
        waiting = wait(waiting, timeout=POLL_S).not_done
        while not pieces.empty():
            num_bytes += pieces.get()
        yield from [None] * (num_bytes // MIB - yielded_mib)
        yielded_mib = num_bytes // MIB


def hash_file(path: Path, piece_done: Callable[[int], None], stopped: Event) -> str:
    """sha256 of a file, read now; remembered if the file was at rest before and while it was read.

    Args:
        path: A regular file.
        piece_done: Told the bytes of each piece.
        stopped: Ends the reading when it is set.
    """
    digest, buffer, begun_ns = hashlib.sha256(), memoryview(bytearray(MIB)), time.time_ns()
    try:
        with path.open("rb", buffering=0) as file:
            before = file_state(os.fstat(file.fileno()))
            while num_bytes := file.readinto(buffer):
                if stopped.is_set():
                    raise CancelledError
                digest.update(buffer[:num_bytes])
                piece_done(num_bytes)
            after = file_state(os.fstat(file.fileno()))
    except OSError as error:
        raise UserError(unreadable(path, error, REMEDY)) from error
    if before == after and begun_ns - before.written_ns >= SETTLED_NS:
        remember(path, before, digest.hexdigest(), begun_ns)
    return digest.hexdigest()


def state_of(path: Path) -> FileState:
    """The state of a regular file, links followed.

    Raises:
        UserError: If there is none.
    """
    try:
        require_regular(path, remedy=REMEDY)
        return file_state(path.stat())
    except OSError as error:
        raise UserError(unreadable(path, error, REMEDY)) from error


def file_state(status: os.stat_result) -> FileState:
    """What of a stat tells a change."""
    return FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def recall(path: Path) -> str | None:
    """The sha256 of a file as it was read before; None if it changed since then, or nothing sound is remembered."""
    state, file = state_of(path), record_file(path)
    if state.num_bytes < REMEMBERED_BYTES or file is None:
        return None
    try:
        record = read_json_object(file, "")
    except UserError:  # there is none, or it is damaged
        return None
    is_sound, from_ns = record.pop("check", None) == checksum(record), int(os.environ.get(REHASH_VARIABLE, "0"))
    is_current = is_sound and record["state"] == asdict(state) and record["hashed_ns"] >= from_ns
    return record["sha256"] if is_current else None


def remember(path: Path, state: FileState, sha256: str, hashed_ns: int) -> None:
    """Keep what was read, where there is a place for it."""
    file = record_file(path)
    if state.num_bytes < REMEMBERED_BYTES or file is None:
        return
    record = {"path": os.path.realpath(path), "state": asdict(state), "sha256": sha256, "hashed_ns": hashed_ns}
    try:
        write_json({**record, "check": checksum(record)}, file)
    except OSError:  # read-only, full or foreign: the file will be read again
        return


def checksum(record: dict[str, object]) -> str:
    """What a record says of itself, so that a damaged one is not believed."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def record_file(path: Path) -> Path | None:
    """Where the hash of a file is remembered; None on a machine that has no place for it."""
    folder = cache_folder()
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
    return None if folder is None else folder / "file_hashes" / f"{name}.json"


def cache_folder() -> Path | None:
    """Where this user's programs keep what can be made again; None if the user has no home."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "widedraft"
    except RuntimeError:  # no HOME, and no entry of this user
        return None

"""The run folder: which folders may be one, and who works in it now. No torch.

One command at a time owns a run. It holds an flock on <run>/run.lock, which says who that is; the kernel gives the lock
back when the command and the trainings it started have ended, however they ended. flock and not a library, because a
training that outlives the command that started it inherits the open file and with it the lock.
"""

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from architectures.checkpoints.manifest import command
from architectures.errors import UserError
from architectures.files.atomic import remove_partials
from distill.recipe.recipe import RESOLVED
from distill.run.run import RECIPE_NAME, Run

LOCK_NAME = "run.lock"
OWNED_VARIABLE = "WIDEDRAFT_OWNED_RUNS"  # folders that this process, or the one that started it, owns
REMEDY = "Set another run_dir, or leave it out."
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what a disk answers that keeps none

held: dict[str, int] = {}  # file descriptors of this process's locks, by folder


@contextmanager
def owned_run(run: Run, *, beside_others: bool = False) -> Iterator[None]:
    """Own a run for as long as the block lasts; see `owned`.

    Raises:
        UserError: If its folder may not be a run's, or another process owns it.
    """
    require_run_folder(run)
    with owned(run.folder, beside_others=beside_others):
        yield


@contextmanager
def owned(folder: Path, *, beside_others: bool = False) -> Iterator[None]:
    """Own a folder for as long as the block lasts; at once where this process or the one that started it does already.

    What killed owners left half-written in it is removed, unless others may be writing.

    Args:
        folder: To be owned.
        beside_others: Others that say the same may own it too, and nobody else.

    Raises:
        UserError: If another process owns it.
    """
    name = str(folder.resolve())
    if name in owned_folders():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open_lock(folder) as file:
        take_lock(file, folder, fcntl.LOCK_SH if beside_others else fcntl.LOCK_EX)
        if not beside_others:
            remove_partials(folder, mark=LOCK_NAME)
        held[name] = file.fileno()
        os.environ[OWNED_VARIABLE] = os.pathsep.join([*owned_folders(), name])
        try:
            yield
        finally:
            del held[name]
            os.environ[OWNED_VARIABLE] = os.pathsep.join(other for other in owned_folders() if other != name)
            file.truncate(0)


def owned_folders() -> list[str]:
    """The folders that need no lock of this process's own."""
    return [folder for folder in os.environ.get(OWNED_VARIABLE, "").split(os.pathsep) if folder]


def open_lock(folder: Path) -> BinaryIO:
    """The lock file of a folder; made if it is not there, never through a link."""
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, "r+b", buffering=0)


def take_lock(file: BinaryIO, folder: Path, kind: int = fcntl.LOCK_EX) -> None:
    """Lock an open file and write down who has it.

    Raises:
        UserError: If another process has.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{folder}: {describe_owner(file.read())} works in it. Wait until that has ended, or set another run_name."
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        print(f"{folder}: its disk keeps no locks; let no second command work in it.", file=sys.stderr)
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join(command()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    file.truncate(0)
    file.write(json.dumps(owner).encode() + b"\n")


def describe_owner(written: bytes) -> str:
    """Who a lock file names; it may have been locked a moment ago, and say nothing yet."""
    try:
        owner = json.loads(written)
        return f"process {owner['pid']} on {owner['host']} (`{owner['command']}`, since {owner['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"


def require_run_folder(run: Run) -> None:
    """Raise UserError unless the folder is a run's, or empty, or not there."""
    recipe, where, folder = run.recipe, f"run_dir={run.recipe.run_dir}", run.folder.resolve()
    if run.folder.exists() and not run.folder.is_dir():
        raise UserError(f"{where}: is a file, not a folder. {REMEDY}")
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111  # Path.home() fails where there is none
    if folder in (folder.parent, home):
        raise UserError(f"{where}: is {folder}, which no run may fill. {REMEDY}")
    for key, path in (("target.path", recipe.target.path), ("architecture.source", recipe.architecture.source)):
        if path is not None and folder.is_relative_to(Path(path).expanduser().resolve()):
            raise UserError(f"{where}: is or lies inside {key}={path}, which is only read. {REMEDY}")
    if folder.is_dir() and any(folder.iterdir()) and not is_run(folder):
        raise UserError(
            f"{where}: exists, is not empty, and no run of widedraft began there (it holds no recipe.yaml that a stage "
            f"wrote). {REMEDY}"
        )


def is_run(folder: Path) -> bool:
    """Whether a stage has written here before."""
    recipe = folder / RECIPE_NAME
    if (folder / LOCK_NAME).is_file():
        return True
    return recipe.is_file() and recipe.read_bytes()[: len(RESOLVED)] == RESOLVED.encode()

"""Rendezvous and common exit of the processes that a launcher started for one command.

    composer -n 8 -m widedraft run RECIPE

Composer's launcher and torchrun set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
Without these there is one process, and `joined` imports no torch. `--processes` replaces this process by Composer's
launcher (exec), so signals and exit code are the launcher's.
"""

import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from architectures.errors import UserError
from architectures.files import partial_path
from architectures.settings import Flag, Holding, Section
from architectures.sharing import ALONE, Share
from distill.process import LostProcessError, end_on_sigterm

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

MEETING_S = 1800  # for all processes to join: those of another machine may start later
STORE = "env://?use_libuv=0"  # libuv's loses connections for values of several MiB: docs/library_bugs.md
PORT_TAKEN = "failed to listen on any local network address"  # torch's message


def is_launched() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined() -> Iterator[Share]:
    """Yield this process's share of the work; all of it without a launcher.

    Only rank 0 prints. A UserError in one process ends all of them.

    Raises:
        UserError: If there are fewer GPUs than processes, or another process raised one.
        LostProcessError: If another process is gone.
    """
    if not is_launched():
        yield ALONE
        return
    reject_half_launched()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # or torch logs lost connections with C++ stack traces
    from distill.board import Pulse, StoreBoard

    index, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    signal.signal(signal.SIGTERM, end_on_sigterm if index == 0 else signal.SIG_DFL)
    take_own_device()
    board = StoreBoard(meeting_place(index, count), index, count)
    with ExitStack() as stack:
        stack.enter_context(Pulse(board))
        if index > 0:
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
        # Publish a UserError to all processes, and keep serving values they still wait for.
        try:
            per_machine = int(os.environ.get("LOCAL_WORLD_SIZE", count))
            yield Share(index, count, board, per_machine=per_machine)
        except UserError as error:
            board.print_user_error(str(error))
            board.leave()
            raise
        board.leave()


def reject_half_launched() -> None:
    """Raise UserError if WORLD_SIZE is set, but no valid rank or master."""
    numbers = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    unset = [name for name in numbers if not os.environ.get(name, "").isdecimal()]
    unset += [] if os.environ.get("MASTER_ADDR") else ["MASTER_ADDR"]
    if unset or int(os.environ["RANK"]) >= int(os.environ["WORLD_SIZE"]):
        values = ", ".join(f"{name} is {os.environ.get(name) or 'not set'}" for name in (*numbers, "MASTER_ADDR"))
        raise UserError(
            f"{values}: these are inconsistent. Start several processes with `composer -n N -m widedraft ...` or "
            "--processes N; for one, unset WORLD_SIZE."
        )


def meeting_place(index: int, count: int) -> "Store":
    """Return the store shared by all processes.

    Raises:
        UserError: If its port is taken.
        LostProcessError: If other processes do not join.
    """
    import torch.distributed
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(iter(rendezvous(STORE, index, count, timeout=timedelta(seconds=MEETING_S))))
    except torch.distributed.DistError as error:
        where, why = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", str(error).splitlines()[0]
        if PORT_TAKEN in why:
            raise UserError(
                f"{where}: the port is in use, perhaps by another run on this machine. Set another --master_port "
                "on all machines."
            ) from error
        raise LostProcessError(
            f"process {index} of {count} could not join the others at {where}: {why} All machines need the "
            "same --master_addr and --master_port, and must start within half an hour"
        ) from error
    return store


def take_own_device() -> None:
    """Select this process's GPU as "cuda", or limit its CPU threads to its share of the cores.

    Raises:
        UserError: If this machine has fewer GPUs than processes.
    """
    import torch

    from eval.machine import share_cores

    local, processes = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if processes > gpus:
            raise UserError(f"{processes} processes on this machine, which has {gpus} GPUs: start one per GPU.")
        torch.cuda.set_device(local)
    else:
        share_cores(processes)


FLAG = "--processes"

Processes = Annotated[
    Annotated[int, Field(ge=1, le=1024)] | None,
    Field(description="Number of processes on this machine, each with its own GPU if there are any"),
    Flag(metavar="N", absent="one per GPU, else one"),
]


def launch_if_several(
    settings: Section, words: Sequence[str], single_process_reason: Callable[[Any], str | None] = lambda _: None
) -> None:
    """Replace this process by a launcher if several processes are wanted; else return.

    Args:
        settings: Of the command. It is distributed if it has `processes`, unless `is_for_one`.
        words: Command line without the program.
        single_process_reason: Returns a reason for one process, used if `processes` is not set.

    Raises:
        UserError: If a launcher started this process, and the command is not distributed or sets `processes`.
    """
    is_shared = "processes" in type(settings).model_fields and not getattr(settings, "is_for_one", False)
    wanted: int | None = getattr(settings, "processes", None)
    if is_launched():
        started = f"a launcher has started {os.environ['WORLD_SIZE']} processes"
        if wanted is not None:
            raise UserError(f"{FLAG} must not be set: {started} already.")
        if not is_shared:
            raise UserError(
                f"`{shlex.join(['widedraft', *words[:1]])}` runs in one process, but {started}. Start it directly."
            )
        return
    count = (wanted or gpus_here()) if is_shared else 1
    if wanted is None and count > 1 and (why := single_process_reason(settings)) is not None:
        print(why, flush=True)
        return
    if count > 1:
        # The same command without --processes and its value.
        kept, is_value = [], False
        for word in words:
            if not is_value and word.partition("=")[0] != FLAG:
                kept.append(word)
            is_value = not is_value and word == FLAG
        command = [sys.executable, "-m", "composer", "-n", str(count), "-m", "widedraft", *kept]
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}  # a user's own eval.py must not hide the package
        sys.stdout.flush()
        os.execve(sys.executable, command, environment)  # noqa: S606  # no shell is wanted


def gpus_here() -> int:
    import torch

    return torch.cuda.device_count()


MOST_NAMED = 3
ABSENT = "nothing"


def require_same(share: Share, what: str, values: Mapping[str, str]) -> None:
    """Raise UserError on all processes if their values differ, with the first differing ones.

    Args:
        what: Name of the values, for the message.
        values: This process's values or fingerprints, by name.
    """
    reject_differing(what, share.exchange(dict(values)))


def reject_differing(what: str, given: Sequence[Mapping[str, str]]) -> None:
    for other, values in enumerate(given):
        names = [name for name in sorted({*given[0], *values}) if given[0].get(name) != values.get(name)]
        if names:
            differences = "; ".join(
                f"{name} is {given[0].get(name, ABSENT)} and {values.get(name, ABSENT)}" for name in names[:MOST_NAMED]
            )
            raise UserError(
                f"process 0 and process {other} of {len(given)} differ in {what}: {differences}. "
                "Start all with the same recipe, the same overrides and the same package versions."
            )


def reject_spread(share: Share, holding: Holding) -> None:
    """Raise UserError if several processes would each spread the target over all GPUs."""
    if share.count > 1 and holding.placement == "spread":
        raise UserError(
            f"target.placement is spread, which uses all GPUs of a machine in one process, but there are "
            f"{share.count}. Start one (--processes 1), or set it to whole or layers."
        )


SEEN_S = 60.0  # for a file of another machine to appear on a network file system
PAUSE_S = 0.2  # between two polls


def require_one_folder(share: Share, folder: Path) -> None:
    """Check that every process sees a file that rank 0 creates; collective.

    Raises:
        UserError: On all processes, since only the end of a stage would reveal missing files.
    """
    if share.count == 1:
        return
    mark = folder / share.lead(lambda: partial_path(folder / "shared").name)  # new name: no NFS cache of its absence
    if share.leads:
        mark.touch()
    share.meet()
    until_s = time.monotonic() + SEEN_S
    while not (sees := mark.exists()) and time.monotonic() < until_s:
        time.sleep(PAUSE_S)
    seen = share.exchange((sees, socket.gethostname()))
    if share.leads:
        mark.unlink()
    blind = [(index, host) for index, (sees, host) in enumerate(seen) if not sees]
    if blind:
        index, host = blind[0]
        raise UserError(
            f"{folder}: files written by process 0 on {seen[0][1]} are not visible to process {index} of {share.count} "
            f"on {host}. Put run_dir, or the working directory, on a shared file system with the same path on all "
            "machines."
        )

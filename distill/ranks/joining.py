"""The processes that a launcher started for one command meet, and end together.

    composer -n 8 -m widedraft run RECIPE

Composer's launcher and torchrun say by RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT who
is who. Without these there is one process, which imports nothing here.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.sharing import ALONE, Share
from distill.process.exits import LostProcessError, end_on_sigterm

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

    from distill.ranks.board import StoreBoard

MEETING_S = 1800  # in which all have to come: those of another machine may start later
STORE = "env://?use_libuv=0"  # libuv's loses connections where values are of MiB: docs/faults.md
PORT_TAKEN = "failed to listen on any local network address"  # as torch says it


def is_launched() -> bool:
    """Whether a launcher started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined() -> Iterator[Share]:
    """This process's share of what the block does with the others that a launcher started; all of it where none did.

    The first process alone is heard. A mistake that one finds ends all of them.

    Raises:
        UserError: If there are fewer GPUs than processes, or another process found a mistake.
        LostProcessError: If another process is gone.
    """
    if not is_launched():
        yield ALONE
        return
    refuse_half_launched()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # or torch tells of lost connections by stacks of C++
    from distill.ranks.board import Pulse, StoreBoard

    index, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    signal.signal(signal.SIGTERM, end_on_sigterm if index == 0 else signal.SIG_DFL)
    take_own_device()
    board = StoreBoard(meeting_place(index, count), index, count)
    with ExitStack() as stack:
        stack.enter_context(Pulse(board))
        if index > 0:
            stack.enter_context(silenced())
        yield from share_until_the_end(board)


def share_until_the_end(board: "StoreBoard") -> Iterator[Share]:
    """The share of a process; tells the others of a mistake, and lets them read what they still wait for."""
    try:
        per_machine = int(os.environ.get("LOCAL_WORLD_SIZE", board.count))
        yield Share(board.index, board.count, board, per_machine=per_machine)
    except UserError as error:
        board.tell_mistake(str(error))
        board.leave()
        raise
    board.leave()


def refuse_half_launched() -> None:
    """Raise UserError for an environment that says of several processes, and not which of them this one is."""
    numbers = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    unset = [name for name in numbers if not os.environ.get(name, "").isdecimal()]
    unset += [] if os.environ.get("MASTER_ADDR") else ["MASTER_ADDR"]
    if unset or int(os.environ["RANK"]) >= int(os.environ["WORLD_SIZE"]):
        said = ", ".join(f"{name} is {os.environ.get(name) or 'not set'}" for name in (*numbers, "MASTER_ADDR"))
        raise UserError(
            f"{said}: no launcher sets them so. Start several processes by `composer -n N -m widedraft ...` or "
            "--processes N; for one, unset WORLD_SIZE."
        )


def meeting_place(index: int, count: int) -> "Store":
    """The store that all processes know by the environment.

    Raises:
        UserError: If its port is taken.
        LostProcessError: If others do not come.
    """
    import torch.distributed
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(iter(rendezvous(STORE, index, count, timeout=timedelta(seconds=MEETING_S))))
    except torch.distributed.DistError as error:
        where, why = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", str(error).splitlines()[0]
        if PORT_TAKEN in why:
            raise UserError(
                f"{where}: the port is taken, perhaps by another run on this machine. Give all machines another "
                "--master_port."
            ) from error
        raise LostProcessError(
            f"process {index} of {count} did not meet the others at {where}: {why} All machines have to be given the "
            "same --master_addr and --master_port, and to start within half an hour"
        ) from error
    return store


def take_own_device() -> None:
    """Let "cuda" be this process's own GPU; on a processor take its share of the cores.

    Raises:
        UserError: If there are fewer GPUs than processes here.
    """
    import torch

    local, processes = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if processes > gpus:
            raise UserError(f"{processes} processes on this machine, which has {gpus} GPUs: start one for each GPU.")
        torch.cuda.set_device(local)
    elif "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // processes))


@contextmanager
def silenced() -> Iterator[None]:
    """Nothing is printed but how this process ends: the first one speaks for all."""
    out, err = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stdout, sys.stderr = out, err

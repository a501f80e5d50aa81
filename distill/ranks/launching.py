"""Commands that several processes share out, started in as many: as was asked for, else one for every GPU here.

Composer's launcher takes the place of this process, so that signals and exit code are its own.
"""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.flags import Flag
from distill.ranks.joining import is_launched

FLAG = "--processes"

Processes = Annotated[
    Annotated[int, Field(ge=1, le=1024)] | None,
    Field(description="Processes on this machine that share the work, each with a GPU of its own where there are any"),
    Flag(metavar="N", absent="one for each GPU, else one"),
]


def launch_if_several(
    settings: Section, words: Sequence[str], why_alone: Callable[[Any], str | None] = lambda _: None
) -> None:
    """Become the launcher of as many processes as are wanted; return where this one is one of them, or all.

    Args:
        settings: Of the command. Several processes share out what has `processes`, unless it says `is_for_one`.
        words: Of the command line behind the program.
        why_alone: Says of settings why one process is to have all GPUs, where nobody said how many there shall be.

    Raises:
        UserError: If a launcher has started this process, and the command is one process's work, or is told how many
            there shall be.
    """
    is_shared = "processes" in type(settings).model_fields and not getattr(settings, "is_for_one", False)
    wanted: int | None = getattr(settings, "processes", None)
    if is_launched():
        refuse_launched(words, is_shared=is_shared, wanted=wanted)
        return
    count = (wanted or gpus_here()) if is_shared else 1
    if wanted is None and count > 1 and (why := why_alone(settings)) is not None:
        print(why, flush=True)
        return
    if count > 1:
        sys.stdout.flush()
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}  # a user's own eval.py must not hide ours
        os.execve(sys.executable, launching_command(count, words), environment)  # noqa: S606  # no shell is wanted


def refuse_launched(words: Sequence[str], *, is_shared: bool, wanted: int | None) -> None:
    """Raise UserError for a command that several processes cannot share out, or that is told of others."""
    started = f"a launcher has started {os.environ['WORLD_SIZE']} processes"
    if wanted is not None:
        raise UserError(f"{FLAG} must be left out where {started} already.")
    if not is_shared:
        raise UserError(
            f"`{shlex.join(['widedraft', *words[:1]])}` as it was asked for is the work of one process, and {started}. "
            "Start it by itself."
        )


def launching_command(count: int, words: Sequence[str]) -> list[str]:
    """Composer's launcher of this command."""
    return [sys.executable, "-m", "composer", "-n", str(count), "-m", "widedraft", *without_flag(words)]


def without_flag(words: Sequence[str]) -> list[str]:
    """The words that each process is given: all but how many there are."""
    kept, is_value = [], False
    for word in words:
        if not is_value and word.partition("=")[0] != FLAG:
            kept.append(word)
        is_value = not is_value and word == FLAG
    return kept


def gpus_here() -> int:
    """How many GPUs this process may use."""
    import torch

    return torch.cuda.device_count()

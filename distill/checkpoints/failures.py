"""Checkpoints that could not be written: what the disk said, and what can still be used. No torch."""

import shutil
from pathlib import Path

from distill.checkpoints.files import find_checkpoints


def disk_error(error: BaseException | None) -> OSError | None:
    """The operating system's error behind an exception: torch raises a RuntimeError while it handles one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def explain_write_failure(cause: OSError, path: Path) -> str:
    """The message for a checkpoint that could not be written, with what can still be used."""
    usable = find_checkpoints(path.parent)
    earlier = f"{usable[-1]} stays usable" if usable else "there is no earlier one"
    free_gib = shutil.disk_usage(path.parent).free / 2**30
    return (
        f"{path}: writing this checkpoint failed ({cause.strerror}); its disk has {free_gib:.2f} GiB free, and "
        f"{earlier}. Make room, then run the same command again to continue."
    )

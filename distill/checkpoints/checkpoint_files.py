"""Listing and integrity of checkpoints. No torch.

A whole checkpoint is a file, `ep{epoch}-ba{batch}-rank0.pt`. Composer writes it directly to its final name, so a crash
or a full disk leaves it truncated. A `.pt` file is a zip archive with its central directory at the end and a CRC-32 of
every entry, so damage is found without unpickling. A sharded checkpoint is a directory, `ep{epoch}-ba{batch}`
(folders.py).
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Literal

from distill.checkpoints.trust import zip_damage

CHECKPOINT_NAME = "ep{epoch}-ba{batch}-rank{rank}.pt"  # filled in by Composer
LATEST_NAME = "latest-rank{rank}.pt"  # symlink to the newest
BEST_NAME = "best-rank0.pt"  # symlink to the one with the highest held-out tau
MASK_CHECKPOINTS_KEPT = 2  # of mask training, whose recipe has no key for it
FOLDER_NAME = "ep{epoch}-ba{batch}"  # of a sharded one
OF_A_FILE = "-rank0.pt"
NAME_PATTERN = re.compile(r"ep(\d+)-ba(\d+)(-rank0\.pt)?")


def newest_intact_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint to resume from, or None; reports damaged ones on stderr."""
    for path in reversed(find_checkpoints(folder)):
        problem = damage(path)
        if problem is None:
            return path
        print(f"{path}: truncated or damaged ({problem}); trying the previous one.", file=sys.stderr)
    return None


def chosen_checkpoint(folder: Path, which: Literal["best", "latest"]) -> Path | None:
    """Return the checkpoint to export; "best" falls back to the newest intact one without an evaluation."""
    best = best_checkpoint(folder) if which == "best" else None
    return newest_intact_checkpoint(folder) if best is None else best


def best_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of the best link; None without a link, or if it is missing or damaged."""
    link = folder / BEST_NAME
    if not link.is_symlink():
        return None
    path = folder / link.readlink().name
    problem = damage(path) if path.exists() else "it no longer exists"
    if problem is not None:
        print(f"{path}: the best checkpoint cannot be used ({problem}).", file=sys.stderr)
        return None
    return path


def find_checkpoints(folder: Path) -> list[Path]:
    """List all checkpoints of a training run, intact or not, oldest first."""
    return sorted(filter(is_checkpoint, folder.glob("ep*")), key=training_time)


def is_checkpoint(path: Path) -> bool:
    match = NAME_PATTERN.fullmatch(path.name)
    return match is not None and (path.is_dir() if match[3] is None else path.is_file())


def training_time(path: Path) -> tuple[int, int]:
    """Return (batches, epochs) from the name of a checkpoint."""
    match = NAME_PATTERN.fullmatch(path.name)
    assert match is not None, path
    epoch, batch = int(match[1]), int(match[2])
    return batch, epoch


def damage(path: Path) -> str | None:
    """Describe the damage of a checkpoint in a few words; None if every byte is intact.

    Raises:
        UserError: If it is a directory whose metadata references code.
    """
    if not path.is_dir():
        return file_damage(path)
    from distill.checkpoints.folders import folder_damage  # imports torch

    return folder_damage(path)


def file_damage(path: Path) -> str | None:
    with path.open("rb") as file:
        return zip_damage(file, path.stat().st_size)


def disk_error(error: BaseException | None) -> OSError | None:
    """Return the OSError behind an exception: torch raises a RuntimeError while it handles one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def explain_write_failure(cause: OSError, path: Path) -> str:
    usable = find_checkpoints(path.parent)
    earlier = f"{usable[-1]} is still usable" if usable else "there is no earlier one"
    free_gib = shutil.disk_usage(path.parent).free / 2**30
    return (
        f"{path}: writing this checkpoint failed ({cause.strerror}); its disk has {free_gib:.2f} GiB free, and "
        f"{earlier}. Free disk space, then run the same command again to continue."
    )

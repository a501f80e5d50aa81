"""Checkpoints: which there are, which is the newest, and whether one is whole. No torch.

A whole one is a file, `ep{epoch}-ba{batch}-rank0.pt`; Composer writes it straight to its final name: a machine that
dies meanwhile, or a disk that fills up, leaves it cut short. A `.pt` file is a zip archive whose directory stands at
its end and holds a CRC-32 of every entry, so damage shows without unpickling anything. A sharded one is a folder,
`ep{epoch}-ba{batch}`, as folders.py reads it.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Literal

from distill.checkpoints.trust import zip_damage

CHECKPOINT_NAME = "ep{epoch}-ba{batch}-rank{rank}.pt"  # Composer fills this in
LATEST_NAME = "latest-rank{rank}.pt"  # a link to the newest
BEST_NAME = "best-rank0.pt"  # a link to the one whose held-out tau was highest
MASK_CHECKPOINTS_KEPT = 2  # of mask training, whose recipe has no key for it
FOLDER_NAME = "ep{epoch}-ba{batch}"  # of a sharded one
OF_A_FILE = "-rank0.pt"
NAME_PATTERN = re.compile(r"ep(\d+)-ba(\d+)(-rank0\.pt)?")


def newest_intact_checkpoint(folder: Path) -> Path | None:
    """The checkpoint a resumed training should start from; each damaged one passed over is named on stderr.

    Returns:
        Its path, or None where there is none.
    """
    for path in reversed(find_checkpoints(folder)):
        problem = damage(path)
        if problem is None:
            return path
        print(f"{path}: cut short or damaged ({problem}); looking for the one before it.", file=sys.stderr)
    return None


def chosen_checkpoint(folder: Path, which: Literal["best", "latest"]) -> Path | None:
    """The checkpoint to export: the newest intact one where the best is wanted and no evaluation has named one yet."""
    best = best_checkpoint(folder) if which == "best" else None
    return newest_intact_checkpoint(folder) if best is None else best


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint the best link points to; None where there is no link, or the file is gone or damaged."""
    link = folder / BEST_NAME
    if not link.is_symlink():
        return None
    path = folder / link.readlink().name
    problem = damage(path) if path.exists() else "it is gone"
    if problem is not None:
        print(f"{path}: the best checkpoint cannot be used ({problem}).", file=sys.stderr)
        return None
    return path


def find_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a training, files and folders, whole or not, oldest first."""
    return sorted(filter(is_checkpoint, folder.glob("ep*")), key=training_time)


def is_checkpoint(path: Path) -> bool:
    """Whether a path is named as checkpoints are, and is what its name says."""
    match = NAME_PATTERN.fullmatch(path.name)
    return match is not None and (path.is_dir() if match[3] is None else path.is_file())


def training_time(path: Path) -> tuple[int, int]:
    """Batches and epochs trained when a checkpoint was written, as its name says."""
    match = NAME_PATTERN.fullmatch(path.name)
    assert match is not None, path
    epoch, batch = int(match[1]), int(match[2])
    return batch, epoch


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, in a few words; None when every byte of it is as it was written.

    Raises:
        UserError: If it is a folder whose metadata names code.
    """
    if not path.is_dir():
        return file_damage(path)
    from distill.checkpoints.folders import folder_damage  # only now, since it takes torch

    return folder_damage(path)


def file_damage(path: Path) -> str | None:
    """The same of a file."""
    with path.open("rb") as file:
        return zip_damage(file, path.stat().st_size)


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

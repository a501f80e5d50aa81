"""Checkpoint files: which there are, which is the newest, and whether a file is whole.

Composer writes one file per checkpoint, `ep{epoch}-ba{batch}-rank0.pt`, straight to its final name: a machine that dies
meanwhile, or a disk that fills up, leaves it cut short. A `.pt` file is a zip archive whose directory stands at its end
and holds a CRC-32 of every entry, so damage shows without unpickling anything.
"""

import re
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Literal

CHECKPOINT_NAME = "ep{epoch}-ba{batch}-rank{rank}.pt"  # Composer fills this in
LATEST_NAME = "latest-rank{rank}.pt"  # a link to the newest
BEST_NAME = "best-rank0.pt"  # a link to the one whose held-out tau was highest
MASK_CHECKPOINTS_KEPT = 2  # of mask training, whose recipe has no key for it
# What zipfile raises on bytes that no archiver wrote: also for encrypted entries and unknown compressions.
NOT_A_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError, ValueError)
FILE_PATTERN = re.compile(r"ep(\d+)-ba(\d+)-rank0\.pt")


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
    problem = damage(path) if path.is_file() else "it is gone"
    if problem is not None:
        print(f"{path}: the best checkpoint cannot be used ({problem}).", file=sys.stderr)
        return None
    return path


def find_checkpoints(folder: Path) -> list[Path]:
    """All checkpoint files of a training, whole or not, oldest first."""
    named = (path for path in folder.glob("*.pt") if FILE_PATTERN.fullmatch(path.name) and path.is_file())
    return sorted(named, key=training_time)


def training_time(path: Path) -> tuple[int, int]:
    """Batches and epochs trained when a checkpoint file was written, as its name says."""
    match = FILE_PATTERN.fullmatch(path.name)
    assert match is not None, path
    epoch, batch = map(int, match.groups())
    return batch, epoch


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint file, in a few words; None when every byte of it is as it was written.

    torch stores entries as they are and none twice. An archive that would be larger when unpacked is not read at all.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                return "its entries are larger than the file"
            entry = archive.testzip()
    except NOT_A_ZIP as error:
        return str(error) or type(error).__name__
    return None if entry is None else f"wrong checksum of {entry}"

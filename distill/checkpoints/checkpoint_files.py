"""Names of checkpoints, integrity of torch archives, and the user's trust in code inside checkpoints. No torch.

A whole checkpoint is a file, `ep{epoch}-ba{batch}-rank0.pt`. Composer writes it directly to its final name, so a crash
or a full disk leaves it truncated. A `.pt` file is a zip archive with its central directory at the end and a CRC-32 of
every entry, so damage is found without unpickling. A sharded checkpoint is a directory, `ep{epoch}-ba{batch}`
(folders.py).

Composer imports the function named by CHECKPOINT_VALIDATION_FUNCTION and calls it with the path of every checkpoint
before unpickling it (composer/utils/checkpoint.py, mosaicml 0.32.1). Subprocesses inherit the variable, so one
`--trust-checkpoints` holds for all; `are_trusted` reads it, too.
"""

import os
import pickle
import re
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Annotated

from pydantic import Field

from architectures.errors import UserError
from architectures.files import format_bytes

CHECKPOINT_NAME = "ep{epoch}-ba{batch}-rank{rank}.pt"  # filled in by Composer
LATEST_NAME = "latest-rank{rank}.pt"  # symlink to the newest
BEST_NAME = "best-rank0.pt"  # symlink to the one with the highest held-out tau
MASK_CHECKPOINTS_KEPT = 2  # of mask training, whose recipe has no key for it
FOLDER_NAME = "ep{epoch}-ba{batch}"  # of a sharded one
OF_A_FILE = "-rank0.pt"
NAME_PATTERN = re.compile(r"ep(\d+)-ba(\d+)(-rank0\.pt)?")


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


def disk_error(error: BaseException | None) -> OSError | None:
    """Return the OSError behind an exception: torch raises a RuntimeError while it handles one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def explain_write_failure(cause: OSError, path: Path) -> str:
    usable = find_checkpoints(path.parent)
    earlier = f"{usable[-1]} is still usable" if usable else "there is no earlier one"
    free = format_bytes(shutil.disk_usage(path.parent).free)
    return (
        f"{path}: writing this checkpoint failed ({cause.strerror}); its disk has {free} free, and "
        f"{earlier}. Free disk space, then run the same command again to continue."
    )


# Raised by zipfile for bytes that are not a zip file, including encrypted entries and unknown compressions.
NOT_A_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError, ValueError)
# Raised by unpicklers for bytes that are not a pickle.
UNREADABLE = (
    pickle.UnpicklingError,
    *(ValueError, TypeError, AttributeError, LookupError, EOFError, AssertionError, ArithmeticError),
    *(ImportError, MemoryError, RuntimeError, struct.error),
)
VALIDATION_VARIABLE = "CHECKPOINT_VALIDATION_FUNCTION"
REJECT_CODE = "distill.checkpoints.saving.is_free_of_code"
TRUST = "distill.checkpoints.saving.is_trusted"
OPTION = "--trust-checkpoints"

TrustCheckpoints = Annotated[bool, Field(description="Load checkpoints without checking them; code in them is run.")]


def zip_damage(file: IO[bytes], size: int) -> str | None:
    """Describe the damage of an archive of `size` bytes in a few words; None if it is intact.

    torch stores entries uncompressed and without duplicates, so an archive with larger contents is rejected unread.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > size:
                return "its entries are larger than the file"
            entry = archive.testzip()
    except NOT_A_ZIP as error:
        return str(error) or type(error).__name__
    return None if entry is None else f"wrong checksum of {entry}"


def trust_checkpoints() -> None:
    """Trust checkpoints in this process and those it starts: code in them runs."""
    os.environ[VALIDATION_VARIABLE] = TRUST


def guard_composer() -> None:
    """Make Composer reject untrusted code in checkpoints. Call before creating a Trainer."""
    if not are_trusted():
        os.environ[VALIDATION_VARIABLE] = REJECT_CODE


def are_trusted() -> bool:
    return os.environ.get(VALIDATION_VARIABLE) == TRUST


def code_found(path: object, fact: str) -> UserError:
    return UserError(
        f"{path}: {fact}, unlike any checkpoint of widedraft; loading it might run code. "
        f"Delete it, or pass {OPTION} if you trust its source."
    )

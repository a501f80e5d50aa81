"""Integrity of torch archives, and the user's trust in code inside checkpoints. No torch.

Composer imports the function named by CHECKPOINT_VALIDATION_FUNCTION and calls it with the path of every checkpoint
before unpickling it (composer/utils/checkpoint.py, mosaicml 0.32.1). Subprocesses inherit the variable, so one
`--trust-checkpoints` holds for all; `are_trusted` reads it, too.
"""

import os
import pickle
import struct
import zipfile
import zlib
from typing import IO, Annotated

from pydantic import Field

from architectures.errors import UserError

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

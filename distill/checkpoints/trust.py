"""Whether every byte of an archive of torch's is as it was written, and whether it may hold code. No torch.

Composer imports the function that CHECKPOINT_VALIDATION_FUNCTION names and calls it with the path of every checkpoint
before unpickling it (composer/utils/checkpoint.py, mosaicml 0.32.1). The variable reaches the processes that a command
starts, so one `--trust-checkpoints` holds for all of them; our own reads look at it too.
"""

import os
import pickle
import struct
import zipfile
import zlib
from typing import IO, Annotated

from pydantic import Field

from architectures.errors import UserError

# What zipfile raises on bytes that no archiver wrote: also for encrypted entries and unknown compressions.
NOT_A_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError, ValueError)
# What unpicklers raise on bytes that no pickler wrote.
UNREADABLE = (
    pickle.UnpicklingError,
    *(ValueError, TypeError, AttributeError, LookupError, EOFError, AssertionError, ArithmeticError),
    *(ImportError, MemoryError, RuntimeError, struct.error),
)
VALIDATION_VARIABLE = "CHECKPOINT_VALIDATION_FUNCTION"
REFUSE_CODE = "distill.checkpoints.reading.is_free_of_code"
TRUST = "distill.checkpoints.reading.is_trusted"
OPTION = "--trust-checkpoints"

TrustCheckpoints = Annotated[bool, Field(description="Read checkpoints whatever is in them: code in them is run.")]


def zip_damage(file: IO[bytes], size: int) -> str | None:
    """What is wrong with an archive of so many bytes, in a few words.

    torch stores entries as they are and none twice. An archive that would be larger when unpacked is not read at all.
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
    """Read checkpoints whatever is in them, in this process and those it starts: code in them runs."""
    os.environ[VALIDATION_VARIABLE] = TRUST


def guard_composer() -> None:
    """Let Composer refuse what we would not read ourselves. Call before a Trainer is made."""
    if not are_trusted():
        os.environ[VALIDATION_VARIABLE] = REFUSE_CODE


def are_trusted() -> bool:
    """Whether `--trust-checkpoints` was given."""
    return os.environ.get(VALIDATION_VARIABLE) == TRUST


def code_found(path: object, fact: str) -> UserError:
    """The refusal of a checkpoint."""
    return UserError(
        f"{path}: {fact}, which no checkpoint of a training here does; reading it might run code. "
        f"Delete it, or give {OPTION} if you know who made it."
    )

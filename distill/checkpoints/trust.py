"""Whether checkpoints may hold code: the function that Composer asks before it reads one. No torch.

Composer imports the function that CHECKPOINT_VALIDATION_FUNCTION names and calls it with the path of every checkpoint
before unpickling it (composer/utils/checkpoint.py, mosaicml 0.32.1). The variable reaches the processes that a command
starts, so one `--trust-checkpoints` holds for all of them; our own reads look at it too.
"""

import os
from typing import Annotated, Protocol

from pydantic import Field

from architectures.errors import UserError

VALIDATION_VARIABLE = "CHECKPOINT_VALIDATION_FUNCTION"
REFUSE_CODE = "distill.exporting.reading.is_free_of_code"
TRUST = "distill.exporting.reading.is_trusted"
OPTION = "--trust-checkpoints"


TrustCheckpoints = Annotated[
    bool, Field(description="Read checkpoints whatever is in them: code that somebody put there is run.")
]


class Trusting(Protocol):
    """Settings with --trust-checkpoints."""

    @property
    def trust_checkpoints(self) -> bool: ...


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

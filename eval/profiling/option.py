"""`--profile DIR`: the option, which round it records, and the folder that profiles go to. No torch."""

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

from pydantic import Field

from architectures.errors import UserError
from architectures.settings.flags import Flag

PROFILED_ROUNDS = 5  # three to warm up, one in which the profiler does, and the one that is recorded


Profile = Annotated[
    Path | None,
    Field(
        description="Record a training step, or a decoding round after everything is measured: a trace for Perfetto or "
        "TensorBoard, memory over time, the slowest operations."
    ),
    Flag(metavar="DIR"),
]


def require_profile_folder(folder: Path) -> None:
    """Make the folder where there is none. What is in it stays, but for an older profile, which is replaced.

    Raises:
        UserError: If it is a file, or nothing can be written there.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--profile {folder}: is a file. Name a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"--profile {folder}: cannot be written to ({error.strerror}). Name another folder.") from error

"""A folder in which several processes write is one folder, on a disk that their machines share. No torch."""

import socket
import time
from pathlib import Path

from architectures.errors import UserError
from architectures.files.atomic import partial_path
from architectures.sharing import Share

SEEN_S = 60.0  # within which a network's disk shows a file of another machine
PAUSE_S = 0.2  # between two looks


def require_one_folder(share: Share, folder: Path) -> None:
    """Have every process see a file that the first one makes; all of them call this.

    Raises:
        UserError: On all, if one does not: what it made would be missed only when a stage is at its end.
    """
    if share.count == 1:
        return
    mark = share.lead(lambda: left_mark(folder))
    seen = share.exchange((share.leads or is_seen(folder / mark), socket.gethostname()))
    if share.leads:
        (folder / mark).unlink()
    blind = [(index, host) for index, (sees, host) in enumerate(seen) if not sees]
    if blind:
        index, host = blind[0]
        raise UserError(
            f"{folder}: what process 0 writes there, on {seen[0][1]}, process {index} of {share.count} does not see, "
            f"on {host}. Put the run on a disk that all machines share, under the same name: run_dir, or the folder in "
            "which the command is called."
        )


def left_mark(folder: Path) -> str:
    """The name of a new file, which nobody can have looked for before; what is left of it is removed with others."""
    mark = partial_path(folder / "shared")
    mark.touch()
    return mark.name


def is_seen(mark: Path) -> bool:
    """Whether a file is there, in a while."""
    until_s = time.monotonic() + SEEN_S
    while not mark.exists():
        if time.monotonic() > until_s:
            return False
        time.sleep(PAUSE_S)
    return True

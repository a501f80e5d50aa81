"""Processes that work together were given the same recipe, read the same files and run the same versions. No torch."""

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from architectures.errors import UserError
from architectures.files.atomic import partial_path
from architectures.settings.holding import Holding
from architectures.sharing import Share

MOST_NAMED = 3
ABSENT = "nothing"


def require_same(share: Share, what: str, values: Mapping[str, str]) -> None:
    """Compare some values of every process.

    Args:
        share: Of them.
        what: The values say, of which the message tells.
        values: Of this process, by name; fingerprints among them.

    Raises:
        UserError: On all of them, if two of them differ, naming the first values in which they do.
    """
    refuse_differing(what, share.exchange(dict(values)))


def refuse_differing(what: str, given: Sequence[Mapping[str, str]]) -> None:
    """Raise UserError if the values of two processes differ."""
    for other, values in enumerate(given):
        names = [name for name in sorted({*given[0], *values}) if given[0].get(name) != values.get(name)]
        if names:
            told = "; ".join(
                f"{name} is {given[0].get(name, ABSENT)} and {values.get(name, ABSENT)}" for name in names[:MOST_NAMED]
            )
            raise UserError(
                f"process 0 and process {other} of {len(given)} do not have the same {what}: {told}. "
                "Give all of them one recipe, with the same values, and one version of everything."
            )


def refuse_spread(share: Share, holding: Holding) -> None:
    """Raise UserError if several processes would each spread the target over the GPUs of all."""
    if share.count > 1 and holding.placement == "spread":
        raise UserError(
            f"target.placement is spread, which takes all GPUs of a machine for one process, and there are "
            f"{share.count}. Start one (--processes 1), or set it to whole or layers."
        )


SEEN_S = 60.0  # within which a network's disk shows a file of another machine
PAUSE_S = 0.2  # between two looks


def require_one_folder(share: Share, folder: Path) -> None:
    """Have every process see a file that the first one makes; all of them call this.

    Raises:
        UserError: On all, if one does not: what it made would be missed only when a stage is at its end.
    """
    if share.count == 1:
        return
    mark = Path(share.lead(lambda: str(partial_path(folder / "shared"))))  # which nobody has looked for before
    if share.leads:
        mark.touch()
    share.meet()
    seen = share.exchange((share.leads or is_seen(folder / mark.name), socket.gethostname()))
    if share.leads:
        mark.unlink()
    blind = [(index, host) for index, (sees, host) in enumerate(seen) if not sees]
    if blind:
        index, host = blind[0]
        raise UserError(
            f"{folder}: what process 0 writes there, on {seen[0][1]}, process {index} of {share.count} does not see, "
            f"on {host}. Put the run on a disk that all machines share, under the same name: run_dir, or the folder in "
            "which the command is called."
        )


def is_seen(mark: Path) -> bool:
    """Whether a file is there, in a while."""
    until_s = time.monotonic() + SEEN_S
    while not mark.exists():
        if time.monotonic() > until_s:
            return False
        time.sleep(PAUSE_S)
    return True

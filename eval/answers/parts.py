"""One run's answers written by several jobs: which files are whose, and who may claim them when."""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from eval.answers.shards import read_claims, shard_paths

LOCK_NAME = "settings.lock"
Item = TypeVar("Item")


@dataclass(frozen=True)
class Part:
    """Every n-th file, from the i-th on.

    Attributes:
        number: From 1.
        of: How many parts there are.
    """

    number: int
    of: int

    def of_all(self, files: Sequence[Item]) -> Sequence[Item]:
        """Those of some files that are this part's."""
        return files[self.number - 1 :: self.of]


EVERY_FILE = Part(1, 1)


def missing_shards(folder: Path, names: Sequence[str]) -> list[Path]:
    """Files of some names that are not there yet."""
    claims = read_claims(folder)
    paths = [path for name in names for path in shard_paths(folder, name, claims[name]["num_shards"])]
    return [path for path in paths if not path.is_file()]


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """A block that no two jobs on a folder are in: settings.json is read, added to and written again in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_NAME).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Parts of a long pass, kept on the disk until what is made of them all is whole. No torch.

A pass that is interrupted, or loses one of its processes, goes on with the parts that are there. They are no result:
who has written that removes them.
"""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from architectures.checkpoints.fingerprint import fingerprint_value
from architectures.checkpoints.manifest import PACKAGES, package_version
from architectures.files.atomic import write_bytes

FORMAT = "widedraft.kept/1"
ORDER = "order"  # of the arrays in a part, which their file forgets, and sums may depend on
SUFFIX = ".safetensors"
EVERY_S = 10.0  # between two writings of a part that grows, so that a pass of seconds writes none

Arrays = dict[str, NDArray[Any]]  # of float64 or int64


class Kept:
    """A folder of such parts, each there whole or not at all.

    Args:
        folder: Of one pass.
        inputs: All that decides what its parts are, by name; versions of packages are added. A part of other inputs is
            never read.
    """

    def __init__(self, folder: Path, inputs: Mapping[str, Any]) -> None:
        self.folder = folder
        versions = {name: str(package_version(name)) for name in PACKAGES}
        self.told = {"format": FORMAT, "inputs": fingerprint_value({**versions, **inputs})}
        self.written_s = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether a part that grows is to be written now."""
        return time.monotonic() - self.written_s >= EVERY_S

    def read(self, name: str) -> Arrays | None:
        """A part; None where there is none of these inputs, or it is damaged: it is made again."""
        try:
            with safe_open(self.folder / f"{name}{SUFFIX}", framework="numpy") as file:
                told = file.metadata() or {}
                names = json.loads(told.pop(ORDER, "[]"))
                return {name: file.get_tensor(name) for name in names} if told == self.told else None
        except (OSError, SafetensorError):
            return None

    def write(self, name: str, arrays: Arrays) -> None:
        """Keep a part."""
        stored = {key: np.asarray(values, order="C") for key, values in arrays.items()}
        told = {**self.told, ORDER: json.dumps(list(arrays))}
        write_bytes(save(stored, metadata=told), self.folder / f"{name}{SUFFIX}")
        self.written_s = time.monotonic()


def remove_kept(folder: Path) -> None:
    """Remove the parts of passes below a folder, now that what was made of them is whole."""
    shutil.rmtree(folder, ignore_errors=True)

"""Scores on disk: one safetensors file, written whole or not at all."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from safetensors.numpy import load_file, save

from architectures.files.atomic import write_bytes
from architectures.pruning.scores import Scores

SCORES_NAME = "scores.safetensors"


def save_scores(file: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Write scores for load_scores, in float64; the file appears whole or not at all."""
    stored = {name: np.ascontiguousarray(values, dtype=np.float64) for name, values in arrays.items()}
    write_bytes(save(stored), file)


def load_scores(file: Path) -> Scores:
    return Scores({name: array.astype(np.float64) for name, array in load_file(file).items()})

"""Scores on disk: one safetensors file, written whole or not at all."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from safetensors.numpy import load_file, save

from architectures.scores import Scores

SCORES_NAME = "scores.safetensors"


def save_scores(file: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Write scores for load_scores, in float64; the file appears whole or not at all."""
    stored = save({name: np.ascontiguousarray(values, dtype=np.float64) for name, values in arrays.items()})
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    try:
        with partial.open("wb") as writer:
            writer.write(stored)
            writer.flush()
            os.fsync(writer.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def load_scores(file: Path) -> Scores:
    """The scores that save_scores wrote."""
    return Scores({name: array.astype(np.float64) for name, array in load_file(file).items()})

"""The share of right responses that `widedraft verify --accuracy` tells, with its interval."""

import re
from collections.abc import Iterator

import numpy as np

from eval.accuracy import accuracy_with_interval
from tests.simulations.shares import Row, is_inside, share_of

CHANCES, SIZES = (0.05, 0.5), (20, 100)


def exam_rows(runs: int, *, seed: int) -> Iterator[Row]:
    """How often it holds the chance of a right response."""
    for chance in CHANCES:
        for size in SIZES:

            def holds(rng: np.random.Generator, *, chance: float = chance, size: int = size) -> bool:
                told = accuracy_with_interval((rng.random(size) < chance).tolist())
                return is_inside(chance, [float(number) for number in re.findall(r"\d\.\d{3}", told)[1:]])

            where, share = f"{size} questions, {chance:.0%} correct", share_of(runs, holds, seed=seed)
            yield Row("task accuracy", where, holds=True, nominal=0.95, share=share, runs=runs)

"""The test by which a scorecard holds the steps of sampled live texts against what replay expects of these texts."""

from collections.abc import Iterator

import numpy as np

from eval.replay import ReplayCounts, count_trace, replay_counts
from eval.wall_clock import LEAST_P, steps_p_value
from tests.simulations.prompts import EQUAL, LONGER, Lengths
from tests.simulations.shares import Row, share_of

TOKENS, K = 96, 3
LOGIT, SPREAD, NOISE = -0.6, 0.6, 1.5  # of the chance that a token is kept: mean, between prompts, between tokens
SIZES = (8, 16)  # 16 is eval.wall_clock_prompts
FAULT = 1.15  # chances kept more often than replay knows


def replay_rows(runs: int, *, seed: int, sizes: tuple[int, ...] = SIZES, lengths: Lengths = EQUAL) -> Iterator[Row]:
    """How often a sound loop is said to differ from the replay, and one that keeps 15 % too much."""
    for fault, level, what in ((1.0, LEAST_P, "a correct loop"), (FAULT, None, "15% too many accepted")):
        for size in sizes:

            def differs(rng: np.random.Generator, *, fault: float = fault, size: int = size) -> bool:
                return p_value_of(rng, size, fault, lengths.every) < LEAST_P

            share = share_of(runs, differs, seed=seed)
            name = f"loop against replay: {what} reported as different"
            yield Row(name, lengths.size(size), holds=False, nominal=level, share=share, runs=runs)


def p_value_of(rng: np.random.Generator, size: int, fault: float, every: int) -> float:
    """Of prompts whose steps are drawn with chances that are those of the replay, times a factor."""
    counted, expected = [], []
    for index, level in enumerate(rng.normal(LOGIT, SPREAD, size)):
        is_long = every > 1 and index % every == 0
        accept_T = 1 / (1 + np.exp(-rng.normal(level, NOISE, TOKENS * (LONGER if is_long else 1))))
        expected.append(replay_counts(accept_T, num_speculative_tokens=K))
        counted.append(drawn_counts(rng, np.minimum(1.0, fault * accept_T)))
    return steps_p_value(counted, expected)


def drawn_counts(rng: np.random.Generator, accept_T: np.ndarray) -> ReplayCounts:
    """One text's steps, each proposed token kept by its own chance."""
    trace, start = [], 0
    while start < len(accept_T):
        accepted, most = 0, min(K, len(accept_T) - start - 1)
        while accepted < most and rng.random() < accept_T[start + accepted]:
            accepted += 1
        trace.append((start, accepted))
        start += accepted + 1
    return count_trace(trace, num_tokens=len(accept_T), num_speculative_tokens=K)

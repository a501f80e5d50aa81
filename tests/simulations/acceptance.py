"""Intervals and tests over prompts: alpha, tau, differences, checkpoints, right responses, and live steps."""

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from eval.accuracy import accuracy_with_interval
from eval.checkpoint_curve import behind_the_best
from eval.engines.as_served import CONFIDENCE, sampled_acceptance
from eval.engines.certificate import Counted
from eval.intervals import Estimate, Resampling, paired_ratio_difference, pooled_ratio, sign_flip_p
from eval.replay import ReplayCounts, count_trace, replay_counts
from eval.wall_clock import LEAST_P, steps_p_value
from tests.simulations.prompts import EQUAL, LONGER, K, Lengths, Population
from tests.simulations.shares import Row, is_inside, share_of

RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)
VALUE_ONLY = Resampling(confidence=0.95, num_resamples=1, seed=17)
SIZES = (8, 12, 32, 64)  # 64 is eval.num_prompts
BETTER = 0.25  # of the logit: 0.05 of alpha
CHECKPOINTS = 4
EVERYTHING = "verification steps that accept everything"
Make = Callable[[Population, Resampling], Estimate]

RATES: dict[str, Make] = {
    "acceptance rate": lambda drawn, how: pooled_ratio(*drawn.alpha_columns(), how),
    f"acceptance length, k={K}": lambda drawn, how: pooled_ratio(*drawn.tau_columns(), how),
    EVERYTHING: lambda drawn, how: pooled_ratio(*drawn.full_columns(), how),
    "two drafts, difference in acceptance rate": lambda drawn, how: paired_ratio_difference(
        drawn.alpha_columns(0), drawn.alpha_columns(1), how
    ),
    "two drafts, difference in acceptance length": lambda drawn, how: paired_ratio_difference(
        drawn.tau_columns(0), drawn.tau_columns(1), how
    ),
}


def rate_rows(runs: int, *, seed: int, sizes: Sequence[int] = SIZES, lengths: Lengths = EQUAL) -> Iterator[Row]:
    """How often intervals over prompts hold the truth."""
    everything = lengths.population(0, 0, seed=seed)
    for name, make in RATES.items():
        if name == EVERYTHING and lengths.where:
            continue  # so rare, or so common, that few samples have both
        truth = make(everything, VALUE_ONLY).value
        for size in sizes:

            def holds(rng: np.random.Generator, *, make: Make = make, truth: float = truth, size: int = size) -> bool:
                return is_inside(truth, make(everything.sample(size, rng), RESAMPLING).interval)

            share = share_of(runs, holds, seed=seed)
            yield Row(f"scorecard: {name}", lengths.size(size), holds=True, nominal=0.95, share=share, runs=runs)


def difference_is_shown(drawn: Population) -> bool:
    """Whether the interval of the difference in alpha lies on one side of 0."""
    low, high = paired_ratio_difference(drawn.alpha_columns(0), drawn.alpha_columns(1), RESAMPLING).interval or (0, 0)
    return not low <= 0 <= high


def difference_rows(
    runs: int, *, seed: int, sizes: Sequence[int] = (12, 64), lengths: Lengths = EQUAL
) -> Iterator[Row]:
    """How often two drafts are called different, where they are not and where they are."""
    for better, level in ((0.0, 0.05), (BETTER, None)):
        everything = lengths.population(better, 0, seed=seed)
        words = "equal drafts" if level else "0.05 of acceptance rate"
        for size in sizes:
            rngs = [np.random.default_rng((seed, run)) for run in range(runs)]
            drawn = [everything.sample(size, rng) for rng in rngs]
            tests = [sign_flip_p(sample.kept_DP[0] - sample.kept_DP[1], RESAMPLING) for sample in drawn]
            shares = {
                "sign-flip test": float(np.mean([p <= 0.05 for p in tests])),
                "interval of the difference": float(np.mean([difference_is_shown(sample) for sample in drawn])),
            }
            for name, share in shares.items():
                what = f"{name}: {words} reported as different"
                yield Row(what, lengths.size(size), holds=False, nominal=level, share=share, runs=runs)


def checkpoint_rows(
    runs: int, *, seed: int, sizes: Sequence[int] = (12, 64), lengths: Lengths = EQUAL
) -> Iterator[Row]:
    """How often one of several equal checkpoints is said to be surely behind the best of them."""
    everything = lengths.population(*(0,) * CHECKPOINTS, seed=seed)
    for size in sizes:

        def decides(rng: np.random.Generator, *, size: int = size) -> bool:
            drawn = everything.sample(size, rng)
            taus = [drawn.tau_columns(checkpoint) for checkpoint in range(CHECKPOINTS)]
            best = max(range(CHECKPOINTS), key=lambda checkpoint: sum(taus[checkpoint][0]) / sum(taus[checkpoint][1]))
            intervals = [behind.interval for behind in behind_the_best(taus, best, RESAMPLING) if behind is not None]
            return any(interval is not None and interval[0] > 0 for interval in intervals)

        yield Row(
            f"checkpoints: one of {CHECKPOINTS} equal ones reported worse than the best",
            lengths.size(size),
            holds=False,
            nominal=0.05,
            share=share_of(runs, decides, seed=seed),
            runs=runs,
        )


CHANCES, EXAM_SIZES = (0.05, 0.5), (20, 100)


def exam_rows(runs: int, *, seed: int) -> Iterator[Row]:
    """How often it holds the chance of a right response."""
    for chance in CHANCES:
        for size in EXAM_SIZES:

            def holds(rng: np.random.Generator, *, chance: float = chance, size: int = size) -> bool:
                told = accuracy_with_interval((rng.random(size) < chance).tolist())
                return is_inside(chance, [float(number) for number in re.findall(r"\d\.\d{3}", told)[1:]])

            where, share = f"{size} questions, {chance:.0%} correct", share_of(runs, holds, seed=seed)
            yield Row("task accuracy", where, holds=True, nominal=0.95, share=share, runs=runs)


TEXT_TOKENS, PROPOSED = 96, 3
LOGIT, SPREAD, NOISE = -0.6, 0.6, 1.5  # of the chance that a token is kept: mean, between prompts, between tokens
NUM_PROMPTS = (8, 16)  # 16 is eval.wall_clock_prompts
FAULT = 1.15  # chances kept more often than replay knows


def replay_rows(
    runs: int, *, seed: int, sizes: tuple[int, ...] = NUM_PROMPTS, lengths: Lengths = EQUAL
) -> Iterator[Row]:
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
        accept_T = 1 / (1 + np.exp(-rng.normal(level, NOISE, TEXT_TOKENS * (LONGER if is_long else 1))))
        expected.append(replay_counts(accept_T, num_speculative_tokens=PROPOSED))
        counted.append(drawn_counts(rng, np.minimum(1.0, fault * accept_T)))
    return steps_p_value(counted, expected)


def drawn_counts(rng: np.random.Generator, accept_T: np.ndarray) -> ReplayCounts:
    """One text's steps, each proposed token kept by its own chance."""
    trace, start = [], 0
    while start < len(accept_T):
        accepted, most = 0, min(PROPOSED, len(accept_T) - start - 1)
        while accepted < most and rng.random() < accept_T[start + accepted]:
            accepted += 1
        trace.append((start, accepted))
        start += accepted + 1
    return count_trace(trace, num_tokens=len(accept_T), num_speculative_tokens=PROPOSED)


def served_rows(runs: int, *, seed: int, sizes: tuple[int, ...] = (24, 48)) -> Iterator[Row]:
    """How often sampled acceptance in `certify --as-served` fails a sound engine, and one that keeps 15 % too much."""
    for fault, level, what in (
        (1.0, round(1 - CONFIDENCE, 2), "a correct engine"),
        (FAULT, None, "15% too many accepted"),
    ):
        for size in sizes:

            def fails(rng: np.random.Generator, *, fault: float = fault, size: int = size) -> bool:
                levels = rng.normal(LOGIT, SPREAD, size)
                plain, drafted = ([sampled_text(rng, each, factor) for each in levels] for factor in (1.0, fault))
                return not sampled_acceptance(plain, drafted, 17).holds

            name = f"certify --as-served: {what} reported as different"
            share = share_of(runs, fails, seed=seed)
            yield Row(name, f"{size} prompts", holds=False, nominal=level, share=share, runs=runs)


def sampled_text(rng: np.random.Generator, level: float, fault: float) -> Counted:
    accept_T = 1 / (1 + np.exp(-rng.normal(level, NOISE, TEXT_TOKENS)))
    counts = drawn_counts(rng, np.minimum(1.0, fault * accept_T))
    accepted = round(sum(counts.accepted))
    return Counted(steps=round(float(counts.steps)), proposed=PROPOSED * round(float(counts.steps)), accepted=accepted)

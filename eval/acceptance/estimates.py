"""Values with intervals, by bootstrap over prompts, and the test of a paired difference.

Shape suffixes used in this file:
    P = prompts, C = columns of one number per prompt, R = resamples
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from pydantic import FiniteFloat
from scipy.stats import permutation_test

from eval.acceptance.intervals import Array, least_units, percentile_interval

INTERVALS = "expanded percentile bootstrap"  # as records and pages name how intervals of rates are made


CONFIDENCE, NUM_RESAMPLES = 0.95, 2000  # of every interval in a scorecard


@dataclass(frozen=True)
class Resampling:
    """How intervals are made.

    Those of rates, and of their differences: bootstrap over prompts, expanded for few of them. The prompt is the unit,
    because the accepts within one text depend on each other. Those of speed-ups: Student's t (paired_ratios.py).

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", ch. 13; intervals.py for the rest.
    """

    confidence: float
    num_resamples: int
    seed: int


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, low and high; None where too few units were counted (intervals.least_units)."""

    value: FiniteFloat
    interval: tuple[FiniteFloat, FiniteFloat] | None


Columns = tuple[Sequence[float], Sequence[float]]  # numerators and denominators, one of each per prompt


def pooled_ratio(numerators: Sequence[float], denominators: Sequence[float], resampling: Resampling) -> Estimate:
    """Sum of the numerators over sum of the denominators, one of each per prompt, with its interval."""
    return bootstrap_over_prompts((numerators, denominators), operator.truediv, resampling)


def paired_ratio_difference(first: Columns, second: Columns, resampling: Resampling) -> Estimate:
    """First pooled ratio minus the second, both resampled with the same prompts.

    Args:
        first: Of one draft.
        second: Of the other, in the same order of prompts.
        resampling: How the interval is made.
    """
    return bootstrap_over_prompts((*first, *second), difference_of_ratios, resampling)


def difference_of_ratios(
    first_numerator: Array, first_denominator: Array, second_numerator: Array, second_denominator: Array
) -> Array:
    """One pooled ratio less another."""
    return first_numerator / first_denominator - second_numerator / second_denominator


def bootstrap_over_prompts(
    columns: Sequence[Sequence[float]], statistic: Callable[..., Array], resampling: Resampling
) -> Estimate:
    """A statistic of the sums of some columns with one entry per prompt, with its expanded percentile interval.

    Resamples that leave the statistic without a value, as where a denominator is 0, are left out of the interval.
    Prompts in which nothing was counted are no units: too few others, and there is no interval.
    """
    columns_CP = np.asarray(columns, dtype=np.float64)
    value = float(statistic(*columns_CP.sum(axis=1)))
    num_counted = int((columns_CP != 0).any(axis=0).sum())
    if num_counted < least_units(resampling.confidence):
        return Estimate(value, None)
    weights_RP = resampling_weights(columns_CP.shape[1], resampling)
    with np.errstate(divide="ignore", invalid="ignore"):
        values_R = statistic(*(columns_CP @ weights_RP.T))
    values_R = values_R[np.isfinite(values_R)]
    if not len(values_R):
        return Estimate(value, None)
    return resampled(value, values_R, resampling.confidence, num_units=num_counted)


def resampled(
    value: float, values_R: Sequence[float] | Array, confidence: float, *, num_units: int | None = None
) -> Estimate:
    """A value with what lies between the tails of resampled ones, and itself: of few all may lie on one side."""
    low, high = percentile_interval(values_R, confidence, num_units=num_units)
    return Estimate(value, (min(low, value), max(high, value)))


@lru_cache(maxsize=4)
def resampling_weights(num_prompts: int, resampling: Resampling) -> Array:
    """weights_RP: how often each prompt is drawn, in each resample of as many prompts as there are."""
    rng = np.random.default_rng(resampling.seed)
    weights_RP = rng.multinomial(num_prompts, [1 / num_prompts] * num_prompts, size=resampling.num_resamples)
    return weights_RP.astype(np.float64)


def sign_flip_p(gain_P: Array, resampling: Resampling) -> float:
    """Two-sided p-value of the sum of the gains if each could as well have had the other sign; 1 for one prompt.

    Exact while all flips are no more than resampling.num_resamples, else from so many drawn ones.

    Source: Pitman 1937, "Significance tests which may be applied to samples from any populations", Supplement to the
    Journal of the Royal Statistical Society 4.
    """
    if len(gain_P) < 2:
        return 1.0
    test = permutation_test(
        (gain_P,),
        np.sum,
        permutation_type="samples",
        n_resamples=resampling.num_resamples,
        rng=np.random.default_rng(resampling.seed),
    )
    return float(test.pvalue)

"""Values with intervals by bootstrap over prompts, paired tests, and intervals for few units.

A unit is drawn independently: a prompt, a group of prompts decoded together, a repetition of a step. The coverage of
each interval at the sizes that commands use is simulated (docs/evaluate.md). A single
comparison has the interval of Student's t; those of several are wider, so that picking the best of them costs no
confidence. All are linearised: the contribution of each prompt to the comparison, to first order.

Shape suffixes used in this file:
    P = prompts
    C = columns of one number per prompt
    R = resamples
    U = units
    K = quantities estimated from the same units
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat
from scipy.stats import binom, permutation_test, t

Array = NDArray[np.float64]


def least_units(confidence: float) -> int:
    """Return the number of units below which there is no interval.

    Each unit lies on either side of the truth with probability 1/2, so n of them lie on the same side with probability
    2 / 2^n, which must not exceed 1 - confidence. At 0.95 that makes six.
    """
    return math.ceil(1 - math.log2(1 - confidence))


def t_bound(num_units: int, confidence: float) -> float:
    """Return the half-width of Student's t interval in standard errors."""
    return float(t.ppf((1 + confidence) / 2, num_units - 1))


def percentile_interval(
    values_R: Sequence[float] | Array, confidence: float, *, num_units: int | None = None
) -> tuple[float, float]:
    """Return the quantiles of resampled values that leave (1 - confidence) / 2 on either side.

    Resamples of few units spread too little: their variance is that of the sample, (n - 1) / n of the estimate, and
    the tails of a normal distribution are too light. With num_units the ends are moved outwards by the amount that
    would be right for a mean of normal values. They stay within the resampled range: a share stays in [0, 1].

    Source: Hesterberg 2015, "What Teachers Should Know About the Bootstrap" (arXiv 1411.5279), the expanded percentile
    interval.

    Args:
        num_units: Drawn in each resample; None for many.
    """
    tail = (1 - confidence) / 2 if num_units is None else expanded_tail(num_units, confidence)
    low, high = np.quantile(values_R, (tail, 1 - tail))
    return float(low), float(high)


def expanded_tail(num_units: int, confidence: float) -> float:
    return NormalDist().cdf(-math.sqrt(num_units / (num_units - 1)) * t_bound(num_units, confidence))


def standard_errors(influence_KU: Array) -> Array:
    """Return se_K of quantities whose error is the mean of the units' influence."""
    return influence_KU.std(axis=1, ddof=1) / math.sqrt(influence_KU.shape[1])


def simultaneous_bound(influence_KU: Array, confidence: float, *, num_draws: int, seed: int) -> float:
    """Return the half-width, in standard errors, at which all of several intervals cover their true values together.

    It is a quantile of the largest |t| of quantities with these correlations, estimated from draws; of a single
    quantity it is `t_bound`. So the interval of the best of them, picked after the fact, keeps its confidence.

    Source: Hothorn, Bretz and Westfall 2008, "Simultaneous Inference in General Parametric Models", Biometrical
    Journal 50, sec. 3: the multivariate t distribution with estimated correlations.
    """
    num_units = influence_KU.shape[1]
    least = t_bound(num_units, confidence)
    if len(influence_KU) == 1:
        return least
    centred_KU = influence_KU - influence_KU.mean(axis=1, keepdims=True)
    norms_K1 = np.linalg.norm(centred_KU, axis=1, keepdims=True)
    directions_KU = np.divide(centred_KU, norms_K1, out=np.zeros_like(centred_KU), where=norms_K1 > 0)
    rng = np.random.default_rng(seed)
    normal_KR = directions_KU @ rng.standard_normal((num_units, num_draws))
    scale_R = np.sqrt(rng.chisquare(num_units - 1, num_draws) / (num_units - 1))
    largest_R = np.abs(normal_KR).max(axis=0) / scale_R
    return max(least, float(np.quantile(largest_R, confidence)))


def percentile_bounds(
    values_U: Sequence[float] | Array, share: float, confidence: float
) -> tuple[float | None, float | None]:
    """Return distribution-free bounds of a quantile.

    Either bound is wrong with probability at most (1 - confidence) / 2. None if not even the smallest, or the largest
    value is such a bound.

    Source: David and Nagaraja 2003, "Order Statistics", sec. 7.1: the number of values below it is binomial.
    """
    values_U, tail = np.sort(values_U), (1 - confidence) / 2
    below, above = (surely_inside(len(values_U), each, tail) for each in (share, 1 - share))
    low = float(values_U[below - 1]) if below > 0 else None
    high = float(values_U[-above]) if above > 0 else None
    return low, high


def surely_inside(num_values: int, share: float, tail: float) -> int:
    """Return the largest n such that fewer than n values fall in this share with probability at most `tail`."""
    count_probs_U = binom.cdf(np.arange(num_values), num_values, share)
    return int(np.searchsorted(count_probs_U, tail * (1 + 1e-9), side="right"))


INTERVALS = "expanded percentile bootstrap"  # name of the method for rates, in records and pages


CONFIDENCE, NUM_RESAMPLES = 0.95, 2000  # of every interval in a scorecard


@dataclass(frozen=True)
class Resampling:
    """How intervals are made.

    Rates and their differences: bootstrap over prompts, expanded for few of them. The prompt is the unit, because
    acceptances within one text depend on each other. Speedups: Student's t (paired_ratio_quotients).

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", ch. 13.
    """

    confidence: float
    num_resamples: int
    seed: int


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, low and high; None if too few units were counted (intervals.least_units)."""

    value: FiniteFloat
    interval: tuple[FiniteFloat, FiniteFloat] | None


Columns = tuple[Sequence[float], Sequence[float]]  # numerators and denominators, one of each per prompt


def pooled_ratio(numerators: Sequence[float], denominators: Sequence[float], resampling: Resampling) -> Estimate:
    """Return the sum of the numerators over the sum of the denominators, with its interval."""
    return bootstrap_over_prompts((numerators, denominators), operator.truediv, resampling)


def paired_ratio_difference(first: Columns, second: Columns, resampling: Resampling) -> Estimate:
    """Return the first pooled ratio minus the second, both resampled with the same prompts.

    Args:
        second: Of the other, in the same order of prompts.
    """
    return bootstrap_over_prompts((*first, *second), difference_of_ratios, resampling)


def difference_of_ratios(
    first_numerator: Array, first_denominator: Array, second_numerator: Array, second_denominator: Array
) -> Array:
    return first_numerator / first_denominator - second_numerator / second_denominator


def bootstrap_over_prompts(
    columns: Sequence[Sequence[float]], statistic: Callable[..., Array], resampling: Resampling
) -> Estimate:
    """Return a statistic of column sums, one entry per prompt, with its expanded percentile interval.

    Resamples without a finite value, such as with a zero denominator, are left out of the interval. Prompts in which
    nothing was counted are not units: if too few remain, there is no interval.
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
    """Return a value with the percentile interval of its resamples, widened to include the value itself."""
    low, high = percentile_interval(values_R, confidence, num_units=num_units)
    return Estimate(value, (min(low, value), max(high, value)))


@lru_cache(maxsize=4)
def resampling_weights(num_prompts: int, resampling: Resampling) -> Array:
    """Return weights_RP, how often each resample draws each prompt."""
    rng = np.random.default_rng(resampling.seed)
    weights_RP = rng.multinomial(num_prompts, [1 / num_prompts] * num_prompts, size=resampling.num_resamples)
    return weights_RP.astype(np.float64)


def sign_flip_p(gain_P: Array, resampling: Resampling) -> float:
    """Return the two-sided p-value of the sum of the gains under random signs; 1 for one prompt.

    Exact if there are at most resampling.num_resamples sign patterns, otherwise from that number of random ones.

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


RATIO_INTERVALS = "Student's t of the log"  # name of the method for quotients, in records


def paired_ratio_quotient(first: Columns, second: Columns, resampling: Resampling) -> Estimate:
    [only] = paired_ratio_quotients([(first, second)], resampling)
    return only


def paired_ratio_quotients(pairs: Sequence[tuple[Columns, Columns]], resampling: Resampling) -> list[Estimate]:
    """Return several quotients on the same prompts, with simultaneous intervals.

    A single quotient has Student's t interval of its log, linearised: the contribution of each prompt to the log, to
    first order. Times are never 0, so numerators and denominators are positive.
    """
    values = [quotient_of(first) / quotient_of(second) for first, second in pairs]
    influence_KP = np.array([ratio_influence(*first) - ratio_influence(*second) for first, second in pairs])
    return [
        Estimate(value, None if reach is None else (value * math.exp(-reach), value * math.exp(reach)))
        for value, reach in zip(values, simultaneous_reach(influence_KP, resampling), strict=True)
    ]


def paired_ratio_differences(pairs: Sequence[tuple[Columns, Columns]], resampling: Resampling) -> list[Estimate]:
    """Return several differences of pooled ratios on the same prompts, with simultaneous intervals."""
    values = [quotient_of(first) - quotient_of(second) for first, second in pairs]
    influence_KP = np.array(
        [
            quotient_of(first) * ratio_influence(*first) - quotient_of(second) * ratio_influence(*second)
            for first, second in pairs
        ]
    )
    return [
        Estimate(value, None if reach is None else (value - reach, value + reach))
        for value, reach in zip(values, simultaneous_reach(influence_KP, resampling), strict=True)
    ]


def simultaneous_reach(influence_KP: Array, resampling: Resampling) -> list[float] | list[None]:
    """Return half-widths of simultaneous intervals; None each with too few prompts."""
    if influence_KP.shape[1] < least_units(resampling.confidence):
        return [None] * len(influence_KP)
    bound = simultaneous_bound(
        influence_KP, resampling.confidence, num_draws=resampling.num_resamples, seed=resampling.seed
    )
    return (bound * standard_errors(influence_KP)).tolist()


def quotient_of(columns: Columns) -> float:
    numerators, denominators = columns
    return sum(numerators) / sum(denominators)


def ratio_influence(numerators: Sequence[float], denominators: Sequence[float]) -> Array:
    """Return influence_P, the first-order effect of each prompt on the log of a pooled ratio, times P."""
    above, below = (np.asarray(column, dtype=np.float64) / sum(column) for column in (numerators, denominators))
    return len(above) * (above - below)

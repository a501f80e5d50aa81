"""Values with intervals by the jackknife over prompts, paired tests, and intervals for few units.

A unit is drawn independently: a prompt, a group of prompts decoded together, a repetition of a step. The coverage of
each interval at the sizes that commands use is simulated (docs/evaluate.md). A single
comparison has the interval of Student's t; those of several are wider, so that picking the best of them costs no
confidence. Prompts weigh as much as they are long: one that is ten times as long as the others leaves few degrees of
freedom.

Shape suffixes used in this file:
    P = prompts
    C = columns of one number per prompt
    R = draws
    U = units
    K = quantities estimated from the same units
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat
from scipy.special import expit, logit
from scipy.stats import binom, permutation_test, t

Array = NDArray[np.float64]


def least_units(confidence: float) -> int:
    """Return the number of units below which there is no interval.

    Each unit lies on either side of the truth with probability 1/2, so n of them lie on the same side with probability
    2 / 2^n, which must not exceed 1 - confidence. At 0.95 that makes six.
    """
    return math.ceil(1 - math.log2(1 - confidence))


def t_bound(degrees: float, confidence: float) -> float:
    """Return the half-width of Student's t interval in standard errors."""
    return float(t.ppf((1 + confidence) / 2, degrees))


def degrees_of_freedom(weights_CU: Array) -> float:
    """Return n - 1 for n units of equal weight, fewer for unequal ones, at least 1.

    A unit with the share w of the weight contributes w^2 to the variance, so the units behind the variance have the
    mean share sum(w^3) / sum(w^2), and are as many as its inverse. In simulations with some units ten times as heavy,
    Kish's 1 / sum(w^2) is too many and Satterthwaite's sum(w^2)^2 / sum(w^4) too few.

    Args:
        weights_CU: One or several columns; their mean shares count.
    """
    share_U = (weights_CU / weights_CU.sum(axis=1, keepdims=True)).mean(axis=0)
    return max(1.0, float((1 - 1 / len(share_U)) * (share_U**2).sum() / (share_U**3).sum()))


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
    return NormalDist().cdf(-math.sqrt(num_units / (num_units - 1)) * t_bound(num_units - 1, confidence))


def standard_errors(influence_KU: Array) -> Array:
    """Return se_K of quantities whose error is the mean of the units' influence."""
    return influence_KU.std(axis=1, ddof=1) / math.sqrt(influence_KU.shape[1])


def drawn_errors(influence_KU: Array, degrees: float, *, num_draws: int, seed: int) -> Array:
    """Draw error_KR of quantities estimated from the same units, from the multivariate t distribution.

    Source: Hothorn, Bretz and Westfall 2008, "Simultaneous Inference in General Parametric Models", Biometrical
    Journal 50, sec. 3, with estimated correlations.
    """
    num_units = influence_KU.shape[1]
    rng = np.random.default_rng(seed)
    centred_KU = influence_KU - influence_KU.mean(axis=1, keepdims=True)
    normal_KR = centred_KU @ rng.standard_normal((num_units, num_draws)) / math.sqrt(num_units * max(1, num_units - 1))
    return normal_KR / np.sqrt(rng.chisquare(degrees, num_draws) / degrees)


def simultaneous_bound(influence_KU: Array, degrees: float, confidence: float, *, num_draws: int, seed: int) -> float:
    """Return the half-width, in standard errors, at which all of several intervals cover their true values together.

    It is a quantile of the largest |t| of quantities with these correlations, estimated from draws; of a single
    quantity it is `t_bound`. So the interval of the best of them, picked after the fact, keeps its confidence.
    """
    least = t_bound(degrees, confidence)
    if len(influence_KU) == 1:
        return least
    error_KR = drawn_errors(influence_KU, degrees, num_draws=num_draws, seed=seed)
    se_K1 = standard_errors(influence_KU)[:, np.newaxis]
    t_KR = np.divide(error_KR, se_K1, out=np.zeros_like(error_KR), where=se_K1 > 0)
    return max(least, float(np.quantile(np.abs(t_KR).max(axis=0), confidence)))


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


INTERVALS = "jackknife, Student's t of the logit"  # name of the method for rates, in records and pages


CONFIDENCE, NUM_RESAMPLES = 0.95, 2000  # of every interval in a scorecard


@dataclass(frozen=True)
class Resampling:
    """How intervals are made.

    All by the jackknife over prompts. The prompt is the unit, because acceptances within one text depend on each other.

    Attributes:
        num_resamples: Draws of simultaneous intervals, predictions and sign-flip tests.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", ch. 11.
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
    """Return the sum of the numerators over the sum of the denominators, with its interval.

    A ratio of at most 1 is a share, with an interval of its logit; one above, such as tokens per step, is the
    reciprocal of a share. At exactly 0 or 1 the interval has no width.
    """
    columns_CP = np.array([numerators, denominators], dtype=np.float64)
    columns_CP = columns_CP[:, (columns_CP != 0).any(axis=0)]  # prompts in which nothing was counted are not units
    above, below = columns_CP.sum(axis=1)
    value = float(above / below)
    part_CP = columns_CP if above <= below else columns_CP[::-1]
    [reach] = half_widths(jackknife_influence(part_CP, np.divide)[np.newaxis], part_CP[np.newaxis, 1:], resampling)
    if not reach or value in (0, 1):
        return Estimate(value, None if reach is None else (value, value))
    share = min(value, 1 / value)
    ends = expit(logit(share) + np.array([-reach, reach]) / (share * (1 - share)))
    ends = (ends if above <= below else 1 / ends).tolist()
    return Estimate(value, (min(value, *ends), max(value, *ends)))


def paired_ratio_difference(first: Columns, second: Columns, resampling: Resampling) -> Estimate:
    """Return the first pooled ratio minus the second.

    Args:
        second: Of the other, in the same order of prompts.
    """
    [only] = paired_ratio_differences([(first, second)], resampling)
    return only


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
    """Return several quotients on the same prompts, with simultaneous intervals of their logs.

    Numerators are times, and prompts weigh by them. Times are never 0, so all columns are positive.
    """
    columns_KCP = columns_of(pairs)
    values = [quotient_of(first) / quotient_of(second) for first, second in pairs]
    influence_KP = np.array([jackknife_influence(columns_CP, log_quotient) for columns_CP in columns_KCP])
    return [
        Estimate(value, None if reach is None else (value * math.exp(-reach), value * math.exp(reach)))
        for value, reach in zip(values, half_widths(influence_KP, columns_KCP[:, ::2], resampling), strict=True)
    ]


def paired_ratio_differences(pairs: Sequence[tuple[Columns, Columns]], resampling: Resampling) -> list[Estimate]:
    """Return several differences of pooled ratios on the same prompts, with simultaneous intervals."""
    columns_KCP = columns_of(pairs)
    values = [quotient_of(first) - quotient_of(second) for first, second in pairs]
    influence_KP = np.array([jackknife_influence(columns_CP, difference_of_ratios) for columns_CP in columns_KCP])
    return [
        Estimate(value, None if reach is None else (value - reach, value + reach))
        for value, reach in zip(values, half_widths(influence_KP, columns_KCP[:, 1::2], resampling), strict=True)
    ]


def columns_of(pairs: Sequence[tuple[Columns, Columns]]) -> Array:
    """Return columns_KCP without the prompts in which nothing was counted: they are not units."""
    columns_KCP = np.array([[*first, *second] for first, second in pairs], dtype=np.float64)
    return columns_KCP[:, :, (columns_KCP != 0).any(axis=(0, 1))]


def log_quotient(first_numerator: Array, first_denominator: Array, numerator: Array, denominator: Array) -> Array:
    return np.log(first_numerator / first_denominator) - np.log(numerator / denominator)


def difference_of_ratios(
    first_numerator: Array, first_denominator: Array, numerator: Array, denominator: Array
) -> Array:
    return first_numerator / first_denominator - numerator / denominator


def quotient_of(columns: Columns) -> float:
    numerators, denominators = columns
    return sum(numerators) / sum(denominators)


def jackknife_influence(columns_CP: Array, statistic: Callable[..., Array]) -> Array:
    """Return influence_P, P - 1 times what leaving out a prompt takes from a statistic of column sums.

    Its mean has the error of the statistic, to first order.
    """
    if columns_CP.shape[1] == 1:
        return np.zeros(1)
    total_C1 = columns_CP.sum(axis=1, keepdims=True)
    return (columns_CP.shape[1] - 1) * (statistic(*total_C1) - statistic(*(total_C1 - columns_CP)))


def half_widths(influence_KP: Array, weights_KCP: Array, resampling: Resampling) -> list[float] | list[None]:
    """Return half-widths of simultaneous intervals; None each with too few prompts.

    Args:
        weights_KCP: What prompts weigh in each quantity, one or several columns.
    """
    if influence_KP.shape[1] < least_units(resampling.confidence):
        return [None] * len(influence_KP)
    bound = simultaneous_bound(
        influence_KP,
        min(degrees_of_freedom(weights_CP) for weights_CP in weights_KCP),
        resampling.confidence,
        num_draws=resampling.num_resamples,
        seed=resampling.seed,
    )
    return (bound * standard_errors(influence_KP)).tolist()

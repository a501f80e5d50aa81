"""Intervals for few units: how wide they must be to hold the truth as often as they say. Pure numbers.

A unit is what is drawn by itself: a prompt, a group of prompts that were decoded together, a repetition of a step.
How often each interval holds the truth at the sizes our commands use is simulated (docs/scoring.md, How sure intervals
are).

Shape suffixes used in this file:
    U = units, K = quantities estimated from the same units, R = resamples
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, t

Array = NDArray[np.float64]


def least_units(confidence: float) -> int:
    """Units below which nothing is said: even if all agree, chance does as much in more than 1 - confidence of cases.

    Half of the draws of a unit lie on either side of the truth, so n of them lie on one side in 2 / 2^n of the cases.
    At 0.95 that makes six.
    """
    return math.ceil(1 - math.log2(1 - confidence))


def t_bound(num_units: int, confidence: float) -> float:
    """How many standard errors an interval reaches to either side of an estimate made from so many units."""
    return float(t.ppf((1 + confidence) / 2, num_units - 1))


def percentile_interval(
    values_R: Sequence[float] | Array, confidence: float, *, num_units: int | None = None
) -> tuple[float, float]:
    """What lies between the two tails of resampled values, each half of what confidence leaves.

    Resamples of few units spread too little: their variance is that of the sample, (n - 1) / n of what is estimated,
    and the tails of a normal law are too light. Where the number of units is given, the ends are taken as much farther
    out as would be right for a mean of normal values. They stay within what was resampled: a share stays in [0, 1].

    Source: Hesterberg 2015, "What Teachers Should Know About the Bootstrap" (arXiv 1411.5279), the expanded percentile
    interval.

    Args:
        values_R: Any order.
        confidence: Coverage, a fraction.
        num_units: Drawn in each resample; None for many.
    """
    tail = (1 - confidence) / 2 if num_units is None else expanded_tail(num_units, confidence)
    low, high = np.quantile(values_R, (tail, 1 - tail))
    return float(low), float(high)


def expanded_tail(num_units: int, confidence: float) -> float:
    """The share of resampled values beyond either end of an expanded interval."""
    return NormalDist().cdf(-math.sqrt(num_units / (num_units - 1)) * t_bound(num_units, confidence))


def standard_errors(influence_KU: Array) -> Array:
    """se_K of quantities whose error is the mean of the units' influence."""
    return influence_KU.std(axis=1, ddof=1) / math.sqrt(influence_KU.shape[1])


def simultaneous_bound(influence_KU: Array, confidence: float, *, num_draws: int, seed: int) -> float:
    """How many standard errors all of several intervals must reach to hold all truths together so often.

    The largest of the t values that quantities with these correlations take by chance is drawn; of a single quantity
    it is `t_bound`. Whoever picks the best of them and reads its interval is then no more often wrong than confidence
    says.

    Source: Hothorn, Bretz and Westfall 2008, "Simultaneous Inference in General Parametric Models", Biometrical Journal
    50, sec. 3: the multivariate t law with estimated correlations.
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
    """Bounds of the value below which a share of all draws lies, from the values themselves; whatever their law is.

    Either bound is wrong in no more than half of what confidence leaves. None where even the least, or the largest
    value does not bound it so surely.

    Source: David and Nagaraja 2003, "Order Statistics", sec. 7.1: the number of values below it is binomial.
    """
    values_U, tail = np.sort(values_U), (1 - confidence) / 2
    below, above = (surely_inside(len(values_U), each, tail) for each in (share, 1 - share))
    low = float(values_U[below - 1]) if below > 0 else None
    high = float(values_U[-above]) if above > 0 else None
    return low, high


def surely_inside(num_values: int, share: float, tail: float) -> int:
    """The largest number such that fewer values than it lie in this share of the law in at most `tail` of the cases."""
    chance_of_so_many_U = binom.cdf(np.arange(num_values), num_values, share)
    return int(np.searchsorted(chance_of_so_many_U, tail * (1 + 1e-9), side="right"))

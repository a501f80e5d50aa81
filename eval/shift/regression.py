"""Whether a draft that learns while it serves has become worse: one test after every few updates. Pure numbers.

Shape suffixes used in this file:
    C = checks, R = requests
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eval.acceptance.intervals import Array, least_units, t_bound


def is_worse(new: Sequence[float], good: Sequence[float], *, level: float) -> bool:
    """Whether the alpha of a new draft is surely below that of an earlier one on the same requests.

    With 75 checks of 32 requests each at `level_of_check(0.05, 75)`, simulated (tests/eval/shift/test_regression.py):
    a draft that is as good is rolled back in 4 % of runs where differences are normal, in 3 % where they have heavier
    tails, and in 10 % where most requests lose a little and a few gain much. A loss of one standard deviation of the
    differences is told by 95 % of checks, of half of one by 24 %; of half of one on 128 requests by 99 %.

    Args:
        new: alpha of the new draft, one for each request.
        good: alpha of the last good one, of the same requests.
        level: How often a single check may call a draft worse that is not.

    Returns:
        False too where there are so few requests that chance alone can make all of them agree.

    Raises:
        ValueError: If the numbers of requests differ, or a value is not finite.
    """
    if len(new) != len(good):
        raise ValueError(f"new and good must be of the same requests, got {len(new)} and {len(good)}")
    gain_R = np.asarray(new, dtype=np.float64) - np.asarray(good, dtype=np.float64)
    if not np.isfinite(gain_R).all():
        raise ValueError("every alpha must be finite")
    return len(gain_R) >= least_units(1 - 2 * level) and bool(are_below_zero(gain_R[np.newaxis], level)[0])


def are_below_zero(gain_CR: Array, level: float) -> NDArray[np.bool_]:
    """Of each check, whether the mean of its gains is below zero by Student's t and by Johnson's.

    Student's errs where gains are skewed to the right, Johnson's where they have heavy tails; either bounds the other.

    Source: Johnson 1978, "Modified t tests and confidence intervals for asymmetrical populations", Journal of the
    American Statistical Association 73, eq. 2.5.
    """
    num_requests = gain_CR.shape[1]
    mean_C, variance_C = gain_CR.mean(axis=1), gain_CR.var(axis=1, ddof=1)
    third_C = ((gain_CR - mean_C[:, np.newaxis]) ** 3).sum(axis=1)
    third_C *= num_requests / ((num_requests - 1) * (num_requests - 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        shift_C = third_C / (6 * variance_C * num_requests) + third_C * mean_C**2 / (3 * variance_C**2)
        t_C = np.maximum(mean_C, mean_C + shift_C) / np.sqrt(variance_C / num_requests)
    constant_C = variance_C == 0
    return np.where(constant_C, mean_C < 0, t_C < -t_bound(num_requests, 1 - 2 * level))


def level_of_check(false_rollbacks: float, checks: int) -> float:
    """The level of each of several checks, so that in a run without any regression one of them errs this often at most.

    Source: Sidak 1967, "Rectangular confidence regions for the means of multivariate normal distributions", Journal of
    the American Statistical Association 62.
    """
    return -math.expm1(math.log1p(-false_rollbacks) / checks)

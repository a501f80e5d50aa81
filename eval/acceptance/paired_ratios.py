"""Several comparisons of pooled ratios on the same prompts, with intervals that hold all of their truths together.

A comparison alone has the interval of Student's t. Of several the intervals are wider, so that picking the best of them
costs no confidence. All is linearised: what each prompt adds to the comparison, to first order.

Shape suffixes used in this file:
    K = comparisons, P = prompts
"""

import math
from collections.abc import Sequence

import numpy as np

from eval.acceptance.estimates import Columns, Estimate, Resampling
from eval.acceptance.intervals import Array, least_units, simultaneous_bound, standard_errors

INTERVALS = "Student's t of the log"  # as records name how intervals of quotients are made


def paired_ratio_quotient(first: Columns, second: Columns, resampling: Resampling) -> Estimate:
    """First pooled ratio over the second, of the same prompts; arguments as for the difference."""
    [only] = paired_ratio_quotients([(first, second)], resampling)
    return only


def paired_ratio_quotients(pairs: Sequence[tuple[Columns, Columns]], resampling: Resampling) -> list[Estimate]:
    """Several quotients of the same prompts, whose intervals hold all of their true values together so often.

    A quotient of one pair has the interval of Student's t on the log of it, linearised: what each prompt adds to the
    log, to first order. Times are never 0, so its numerators and denominators are above 0.
    """
    values = [quotient_of(first) / quotient_of(second) for first, second in pairs]
    influence_KP = np.array([ratio_influence(*first) - ratio_influence(*second) for first, second in pairs])
    return [
        Estimate(value, None if reach is None else (value * math.exp(-reach), value * math.exp(reach)))
        for value, reach in zip(values, simultaneous_reach(influence_KP, resampling), strict=True)
    ]


def paired_ratio_differences(pairs: Sequence[tuple[Columns, Columns]], resampling: Resampling) -> list[Estimate]:
    """Several differences of pooled ratios of the same prompts, whose intervals hold together as those of quotients."""
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
    """How far the intervals of several quantities reach to either side; None where prompts are too few for any."""
    if influence_KP.shape[1] < least_units(resampling.confidence):
        return [None] * len(influence_KP)
    bound = simultaneous_bound(
        influence_KP, resampling.confidence, num_draws=resampling.num_resamples, seed=resampling.seed
    )
    return (bound * standard_errors(influence_KP)).tolist()


def quotient_of(columns: Columns) -> float:
    """The pooled ratio of two columns."""
    numerators, denominators = columns
    return sum(numerators) / sum(denominators)


def ratio_influence(numerators: Sequence[float], denominators: Sequence[float]) -> Array:
    """influence_P: how far each prompt moves the log of a pooled ratio, to first order, times the number of prompts."""
    above, below = (np.asarray(column, dtype=np.float64) / sum(column) for column in (numerators, denominators))
    return len(above) * (above - below)

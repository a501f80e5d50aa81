"""The fault that matters most in a lossless rule, looked for directly: accept chances that are too high.

A decoder that keeps proposals too readily writes what the draft overstates too often, and is faster for it. With accept
chances 1 + e times what they should be, a token after given ones is drawn from p'_e in place of p; p'_e follows from p,
q and the rule. The best test of p against p'_f, for one small f, adds up

    h(x) = p'_f(x) / p(x) - 1

over the tokens x that were proposed tokens or stand in their place. Under p each has mean 0 given those before, and the
sum is nearly normal with the sum of their variances (a martingale; Brown 1971, "Martingale central limit theorems"). No
h is above f by much, so a sum that is too large is rarer than the normal law says. The same sums under p'_e tell which
e this many tokens would show: the power of the test, known from the run that it judges.

Shape suffixes used in this file:
    T = tokens of a text, V = vocabulary
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from eval.decoding.rules import EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT
from eval.decoding.texts import Round

FAULT = 0.05  # f: the inflation that h is made for
SIZES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # e at which sums are known; in between they are interpolated
ROUNDING = 1e-4  # of h: a draft that is the target differs from it by nothing else
POWER = 0.9  # of runs, in which the stated inflation is found

Array = NDArray[np.float64]
Inflated = Callable[[Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class Evidence:
    """Sums over tokens.

    Attributes:
        score: Of h.
        variance: Of h under p.
        shifts: Mean of h under p'_e, for each of SIZES.
        variances: Its variance likewise.
    """

    score: float
    variance: float
    shifts: Array
    variances: Array

    @property
    def p_value(self) -> float:
        """The chance of a score so large or larger, of a sound decoder; 1 where no proposal could show anything."""
        return float(norm.sf(self.score / self.variance**0.5)) if self.variance > 0 else 1.0

    def power(self, inflation: float, level: float) -> float:
        """In what share of runs such an inflation is found, at this level of the p-value."""
        if self.variance <= 0:
            return 0.0
        sizes = (0.0, *SIZES)
        shift = np.interp(inflation, sizes, [0.0, *self.shifts])
        variance = np.interp(inflation, sizes, [self.variance, *self.variances])
        return float(norm.sf((norm.isf(level) * self.variance**0.5 - shift) / variance**0.5))

    def least_detectable(self, level: float) -> float | None:
        """The smallest inflation that is found in POWER of the runs, to a tenth of a percent; None above SIZES."""
        tried = np.arange(0.001, SIZES[-1] + 0.0005, 0.001).tolist()
        return next((each for each in tried if self.power(each, level) >= POWER), None)


def pooled(each: Sequence[Evidence]) -> Evidence:
    """Evidence of several texts together."""
    return Evidence(
        sum(text.score for text in each),
        sum(text.variance for text in each),
        np.sum([text.shifts for text in each], axis=0),
        np.sum([text.variances for text in each], axis=0),
    )


def evidence(p_TV: Tensor, q_TV: Tensor, token_ids: Sequence[int], rounds: Sequence[Round], rule: str) -> Evidence:
    """What one text tells of inflated accept chances.

    Args:
        p_TV: The target's distribution at each token.
        q_TV: The draft's.
        token_ids: The text.
        rounds: In which it was decoded.
        rule: By which.
    """
    kept_N = torch.tensor(judged_positions(rounds), dtype=torch.long, device=p_TV.device)
    p_NV, q_NV, inflated = p_TV[kept_N].float(), q_TV[kept_N].float(), inflated_by_rule(rule)
    score_NV = score(p_NV, inflated(p_NV, q_NV, FAULT))
    own_N1 = torch.tensor(token_ids, device=p_TV.device)[kept_N, None]
    moments = [moments_under(inflated(p_NV, q_NV, size), score_NV) for size in (0.0, *SIZES)]
    means, variances = (np.array(column) for column in zip(*moments, strict=True))
    return Evidence(float(score_NV.gather(1, own_N1).double().sum()), variances[0], means[1:], variances[1:])


def score(p_NV: Tensor, inflated_NV: Tensor) -> Tensor:
    """H of every token: 0 where it is rounding alone, and of mean 0 under p."""
    score_NV = torch.where(p_NV > 0, inflated_NV / p_NV - 1, 0)
    score_NV = torch.where(score_NV.abs() > ROUNDING, score_NV, 0)
    return score_NV - (p_NV * score_NV).sum(dim=-1, keepdim=True)


def judged_positions(rounds: Sequence[Round]) -> list[int]:
    """Where a proposed token was kept or replaced: all tokens of a round, but the bonus of one that kept everything."""
    return [
        position
        for round_ in rounds
        for position in range(round_.start, round_.start + min(round_.accepted + 1, round_.proposed))
    ]


def moments_under(chances_NV: Tensor, score_NV: Tensor) -> tuple[float, float]:
    """Sum over rows of the mean of a score and of its variance."""
    means_N = (chances_NV * score_NV).sum(dim=-1).double()
    squares_N = (chances_NV * score_NV.square()).sum(dim=-1).double()
    return float(means_N.sum()), float((squares_N - means_N.square()).sum())


def inflated_by_rule(rule: str) -> Inflated:
    """What tokens are drawn from where accept chances of a rule are too high."""
    if rule == EXACT_GREEDY_DRAFT:
        return lambda p_TV, q_TV, by: inflated_exact(p_TV, one_hot_argmax(q_TV), by)
    return inflated_exact if rule == EXACT_SAMPLED_DRAFT else inflated_rejection


def inflated_rejection(p_TV: Tensor, q_TV: Tensor, by: float) -> Tensor:
    """Tokens kept with chance min(1, (1 + by) p / q), and replaced as they should be; p itself if by is 0."""
    kept_TV = torch.minimum(q_TV, (1 + by) * p_TV)
    rest_TV = (p_TV - q_TV).clamp(min=0)
    total_T1 = rest_TV.sum(dim=-1, keepdim=True)
    rest_TV = torch.where(total_T1 > 0, rest_TV / total_T1, p_TV)
    return kept_TV + (1 - kept_TV.sum(dim=-1, keepdim=True)).clamp(min=0) * rest_TV


def inflated_exact(p_TV: Tensor, q_TV: Tensor, by: float) -> Tensor:
    """Proposed tokens kept where the target draws them, and so often where it does not that it is (1 + by) p in all."""
    wrong_TV = torch.where(p_TV < 1, by * p_TV / (1 - p_TV), 0).clamp(max=1)
    refused_TV = q_TV * (1 - wrong_TV)
    replaced_TV = p_TV * (refused_TV.sum(dim=-1, keepdim=True) - refused_TV)
    return q_TV * (p_TV + (1 - p_TV) * wrong_TV) + replaced_TV


def one_hot_argmax(q_TV: Tensor) -> Tensor:
    """All mass on the most likely token."""
    return torch.zeros_like(q_TV).scatter(-1, q_TV.argmax(dim=-1, keepdim=True), 1.0)

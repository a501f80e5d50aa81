"""Whether a text is one that the target here could have written: read once, and compared choice by choice.

Greedy: where the target takes another token than the engine, the engine's own must nearly tie with it. Each of the
two computed its logits by other kernels, so that either token may come out first where they are near. TIE_STEPS
roundings of the largest logit, in the number type that both compute in, are what eval.checks.near_ties lets honest
decoders differ by; an engine's kernels differ from ours in more than the number of rows, so here it is KERNELS times
as many. Coarser weights (8 or 4 bits) stay within that mostly and tie far more often, so that the share of such
tokens is bounded too. Before the first such place the text is our own greedy one, so the share of texts with one is
the share that differ.

Sampled: a token that was drawn from p surprises by -log p(y), whose mean is the entropy of p. The sum over all tokens
of what is above that is a martingale; divided by its standard deviation it is within SIGMAS for honest draws. Another
temperature, another filter or another model shifts it by a multiple of that on a few hundred tokens.

Shape suffixes used in this file:
    T = tokens of a text, V = vocabulary
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eval.acceptance.replay import answer_logits
from eval.checks.near_ties import shortfalls
from eval.decoding.sampling import Sampling, log_distribution, penalised, seen_along

KERNELS = 2.0  # docs/answers.md, "Near ties"
TIES_SHARE, FEWEST_TIES = 0.05, 10  # of the tokens that are read: 1 % in bfloat16 and none in float32, measured
SIGMAS = 6.0  # an honest run in 10**9 is refused
OUTSIDE_SHARE = 0.01  # of sampled tokens that rounding may put outside of a filter


@dataclass(frozen=True)
class Verdict:
    """What the target says of one greedy text.

    Attributes:
        tokens: Of the text.
        ties: Places where the target takes another token.
        first: The first place where the target takes another token, from 0; None where it takes every one.
        gap: Logits that the engine's token lies below the target's there; of all such places the largest share of
            what is allowed decides.
        excess: The largest gap of any place as a share of what is allowed there.
        worst: The place of it.
    """

    tokens: int
    ties: int
    first: int | None
    gap: float
    excess: float
    worst: int

    @property
    def is_honest(self) -> bool:
        """Whether near ties explain every difference."""
        return self.excess <= 1


@torch.inference_mode()
def judge_greedy(model: PreTrainedModel, prompt: Sequence[int], ids: Sequence[int], sampling: Sampling) -> Verdict:
    """Read a greedy text that an engine wrote."""
    logits_TV = answer_logits(model, prompt, ids)
    logits_TV = penalised(logits_TV, sampling, seen_along(prompt, ids, sampling, logits_TV))
    gap_T, tolerance_T = shortfalls(logits_TV, torch.tensor(ids, device=logits_TV.device), model.dtype)
    excess_T = gap_T / (KERNELS * tolerance_T)
    first = next(iter(gap_T.nonzero().flatten().tolist()), None)
    worst = int(excess_T.argmax())
    return Verdict(
        tokens=len(ids),
        ties=int((gap_T > 0).sum()),
        first=first,
        gap=0.0 if first is None else float(gap_T[first]),
        excess=float(excess_T[worst]),
        worst=worst,
    )


def has_too_many_ties(verdicts: Collection[Verdict]) -> bool:
    """Whether the target takes another token more often than rounding explains."""
    ties, tokens = sum(one.ties for one in verdicts), sum(one.tokens for one in verdicts)
    return ties > max(FEWEST_TIES, TIES_SHARE * tokens)


@dataclass(frozen=True)
class Surprise:
    """What the tokens of sampled texts surprise by beyond what is expected, in nats.

    Attributes:
        tokens: Of the texts.
        outside: Those that the target never draws.
        sum: Of -log p(y) - H(p) over the others.
        variance: Of that sum.
    """

    tokens: int = 0
    outside: int = 0
    sum: float = 0.0
    variance: float = 0.0

    @property
    def sigmas(self) -> float:
        """Standard deviations that the sum is away from 0."""
        return self.sum / self.variance**0.5 if self.variance else 0.0

    @property
    def is_honest(self) -> bool:
        return abs(self.sigmas) <= SIGMAS and self.outside <= max(1.0, OUTSIDE_SHARE * self.tokens)


@torch.inference_mode()
def judge_sampled(model: PreTrainedModel, prompt: Sequence[int], ids: Sequence[int], sampling: Sampling) -> Surprise:
    """Read a sampled text that an engine wrote."""
    logits_TV = answer_logits(model, prompt, ids)
    logp_TV = log_distribution(logits_TV, sampling, seen_along(prompt, ids, sampling, logits_TV)).double()
    entropy_T = torch.special.entr(logp_TV.exp()).sum(dim=-1)
    square_TV = logp_TV.exp() * logp_TV.square().nan_to_num(posinf=0.0)
    variance_T = (square_TV.sum(dim=-1) - entropy_T.square()).clamp(min=0)
    taken_T = logp_TV.gather(1, torch.tensor(ids, device=logp_TV.device)[:, None])[:, 0]
    inside_T = ~taken_T.isneginf()
    return Surprise(
        tokens=len(ids),
        outside=int((~inside_T).sum()),
        sum=total((-taken_T - entropy_T)[inside_T]),
        variance=total(variance_T[inside_T]),
    )


def total(values_T: Tensor) -> float:
    return float(values_T.sum())


def pooled(surprises: Iterable[Surprise]) -> Surprise:
    """Of several texts together."""
    each = list(surprises)
    return Surprise(
        sum(one.tokens for one in each),
        sum(one.outside for one in each),
        sum(one.sum for one in each),
        sum(one.variance for one in each),
    )

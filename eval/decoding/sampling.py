"""How a next token is chosen: from logits to one distribution, the same for target and draft, in float32.

The order is that of transformers' `generate`: repetition penalty, temperature, top-k, top-p, min-p; the filters are its
own. Acceptance rules, sampling and residuals all see what comes out of here, so that what a token was drawn from is
what its chance is computed with.

Shape suffixes used in this file:
    N = rows of logits, V = vocabulary, D = draws, T = tokens of a text
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessor, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eval.config import SamplingConfig


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token.
        top_p: Probability mass of the most likely tokens that are sampled from, in (0, 1].
        top_k: Number of the most likely tokens that are sampled from; None for all.
        min_p: Tokens less likely than this share of the most likely one are not sampled, in [0, 1).
        repetition_penalty: Divides positive and multiplies negative logits of tokens that stand in the text (Keskar et
            al. 2019, sec. 4.1, arXiv 1909.05858); 1 for none.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, temperature: float, config: SamplingConfig) -> "Sampling":
        """What a recipe or a command asks for, at one temperature."""
        return cls(temperature, **config.model_dump())

    @property
    def is_greedy(self) -> bool:
        """Whether every token is the most likely one."""
        return self.temperature == 0


def penalised(logits_NV: Tensor, sampling: Sampling, seen_NV: Tensor | None) -> Tensor:
    """Logits in float32, or float64 where they are so, after the repetition penalty.

    Args:
        logits_NV: What a model said.
        sampling: Holds the penalty.
        seen_NV: Which tokens stand in the text so far; may be None where there is no penalty.
    """
    logits_NV = logits_NV if logits_NV.dtype is torch.float64 else logits_NV.float()
    if sampling.repetition_penalty == 1:
        return logits_NV
    assert seen_NV is not None, "a repetition penalty needs the tokens seen"
    factor = sampling.repetition_penalty
    lowered_NV = torch.where(logits_NV < 0, logits_NV * factor, logits_NV / factor)
    return torch.where(seen_NV, lowered_NV, logits_NV)


def distribution(logits_NV: Tensor, sampling: Sampling, seen_NV: Tensor | None = None) -> Tensor:
    """Probabilities in float32 that tokens are drawn from; all mass on the argmax at temperature 0.

    Args:
        logits_NV: What a model said, in its own number type.
        sampling: How tokens are chosen.
        seen_NV: As in `penalised`.
    """
    return chosen_from(logits_NV, sampling, seen_NV).softmax(dim=-1)


def log_distribution(logits_NV: Tensor, sampling: Sampling, seen_NV: Tensor | None = None) -> Tensor:
    """Logarithms of `distribution` in float32: -inf where a token is never chosen."""
    return chosen_from(logits_NV, sampling, seen_NV).log_softmax(dim=-1)


def chosen_from(logits_NV: Tensor, sampling: Sampling, seen_NV: Tensor | None) -> Tensor:
    """Logits in float32 whose softmax tokens are drawn from: those of tokens that are never chosen are -inf."""
    logits_NV = penalised(logits_NV, sampling, seen_NV)
    if sampling.is_greedy:
        return torch.nn.functional.one_hot(logits_NV.argmax(dim=-1), logits_NV.shape[-1]).float().log()
    logits_NV = logits_NV / sampling.temperature
    for keep in filters(sampling):
        logits_NV = keep(None, logits_NV)  # pyright: ignore[reportArgumentType]  # these do not look at the text
    return logits_NV


def seen_along(
    prompt_ids: Sequence[int], answer_ids: Sequence[int], sampling: Sampling, like_TV: Tensor
) -> Tensor | None:
    """seen_TV: which tokens stand before each token of an answer; None where no penalty asks.

    Args:
        prompt_ids: Tokens a decoder has before the answer.
        answer_ids: The answer.
        sampling: Holds the penalty.
        like_TV: Logits of the answer: they have the size of the vocabulary and the device.
    """
    if sampling.repetition_penalty == 1:
        return None
    seen_TV = torch.zeros_like(like_TV, dtype=torch.bool)
    seen_TV[:, list(prompt_ids)] = True
    for index, token in enumerate(answer_ids[:-1], start=1):
        seen_TV[index:, token] = True
    return seen_TV


def filters(sampling: Sampling) -> list[LogitsProcessor]:
    """What sets the logits of unlikely tokens to minus infinity."""
    processors: list[LogitsProcessor] = []
    if sampling.top_k is not None:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return processors


def confidence_of(logits_NV: Tensor) -> Tensor:
    """confidence_N: the probability of the likeliest token at temperature 1; what a draft's doubt is told by."""
    return logits_NV.float().softmax(dim=-1).amax(dim=-1)


def invert_cumulative(weights_NV: Tensor, draws_N: Tensor) -> Tensor:
    """Per row the first index at which the cumulative weight exceeds draw x total: index i with probability w_i."""
    cumulative_NV = weights_NV.cumsum(dim=-1)
    reached_N1 = draws_N[:, None] * cumulative_NV[:, -1:]
    return torch.searchsorted(cumulative_NV, reached_N1, right=True)[:, 0]


def uniform_draws(seeds: Sequence[int], count: int) -> Tensor:
    """draws_ND in [0, 1): each row from its own generator, on the processor so that every device draws the same."""
    return torch.stack([torch.rand(count, generator=torch.Generator().manual_seed(seed)) for seed in seeds])

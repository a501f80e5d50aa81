"""Sampling and acceptance: from logits to one distribution, the same for target and draft, in float32.

The order is that of transformers' `generate`: repetition penalty, temperature, top-k, top-p, min-p, with its own
filters. Acceptance, sampling and residuals all use the resulting distribution, so that a token's probability is that
of the distribution it was drawn from.

All acceptance rules are lossless for any draft: the output follows the target's distribution.

    rejection            x ~ q is accepted with probability min(1, p(x) / q(x)); the token after the first rejection is
                         drawn from (p - q)+ normalised, the one after all accepted tokens from p. Leviathan et al.
                         2023, algorithm 1 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318).
    exact_sampled_draft  x ~ q is accepted if the target samples the same token, which is emitted in any case.
    exact_greedy_draft   the same with x = argmax q, as vLLM and SGLang do by default.

At temperature 0 all three coincide: a proposed token is accepted if it is the target's argmax.

Shape suffixes used in this file:
    N = rows of logits
    V = vocabulary
    D = draws
    T = tokens of a response
    B = rows
    K = tokens proposed in a step, the longest row's
    J = K + 1
    S = output ids of the draft
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eval.config import SamplingConfig


@dataclass(frozen=True)
class Sampling:
    """Sampling settings.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token.
        top_p: Probability mass of the most likely tokens, in (0, 1].
        top_k: Number of the most likely tokens; None for all.
        min_p: Minimum probability relative to the most likely token, in [0, 1).
        repetition_penalty: Divides positive and multiplies negative logits of tokens that occur in the sequence
            (Keskar et al. 2019, sec. 4.1, arXiv 1909.05858); 1 for none.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, temperature: float, config: SamplingConfig) -> "Sampling":
        return cls(temperature, **config.model_dump())

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


def penalised(logits_NV: Tensor, sampling: Sampling, seen_NV: Tensor | None) -> Tensor:
    """Apply the repetition penalty; returns float32, or float64 if the logits have it.

    Args:
        seen_NV: Tokens in the sequence so far; may be None without a penalty.
    """
    logits_NV = logits_NV if logits_NV.dtype is torch.float64 else logits_NV.float()
    if sampling.repetition_penalty == 1:
        return logits_NV
    assert seen_NV is not None, "a repetition penalty needs the preceding tokens"
    factor = sampling.repetition_penalty
    lowered_NV = torch.where(logits_NV < 0, logits_NV * factor, logits_NV / factor)
    return torch.where(seen_NV, lowered_NV, logits_NV)


def distribution(logits_NV: Tensor, sampling: Sampling, seen_NV: Tensor | None = None) -> Tensor:
    """Return the float32 probabilities that tokens are drawn from; all mass on the argmax at temperature 0.

    Args:
        logits_NV: Of a model, in any dtype.
    """
    return chosen_from(logits_NV, sampling, seen_NV).softmax(dim=-1)


def log_distribution(logits_NV: Tensor, sampling: Sampling, seen_NV: Tensor | None = None) -> Tensor:
    """Return the logarithms of `distribution`, -inf for excluded tokens."""
    return chosen_from(logits_NV, sampling, seen_NV).log_softmax(dim=-1)


def chosen_from(logits_NV: Tensor, sampling: Sampling, seen_NV: Tensor | None) -> Tensor:
    """Return float32 logits whose softmax is the sampling distribution; those of excluded tokens are -inf."""
    logits_NV = penalised(logits_NV, sampling, seen_NV)
    if sampling.is_greedy:
        return torch.nn.functional.one_hot(logits_NV.argmax(dim=-1), logits_NV.shape[-1]).float().log()
    logits_NV = logits_NV / sampling.temperature
    for keep in filters(sampling):
        logits_NV = keep(None, logits_NV)  # pyright: ignore[reportArgumentType]  # these ignore the token ids
    return logits_NV


def seen_along(
    prompt_ids: Sequence[int], response_ids: Sequence[int], sampling: Sampling, like_TV: Tensor
) -> Tensor | None:
    """Return seen_TV, the tokens before each token of a response; None without a repetition penalty.

    Args:
        prompt_ids: The decoder's tokens before the response.
    """
    if sampling.repetition_penalty == 1:
        return None
    seen_TV = torch.zeros_like(like_TV, dtype=torch.bool)
    seen_TV[:, list(prompt_ids)] = True
    for index, token in enumerate(response_ids[:-1], start=1):
        seen_TV[index:, token] = True
    return seen_TV


def filters(sampling: Sampling) -> list[LogitsProcessor]:
    processors: list[LogitsProcessor] = []
    if sampling.top_k is not None:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return processors


def confidence_of(logits_NV: Tensor) -> Tensor:
    """Return confidence_N, the largest probability at temperature 1, compared with a draft's threshold."""
    return logits_NV.float().softmax(dim=-1).amax(dim=-1)


def invert_cumulative(weights_NV: Tensor, draws_N: Tensor) -> Tensor:
    """Return per row the first index at which the cumulative weight exceeds draw x total: i with probability w_i."""
    cumulative_NV = weights_NV.cumsum(dim=-1)
    reached_N1 = draws_N[:, None] * cumulative_NV[:, -1:]
    return torch.searchsorted(cumulative_NV, reached_N1, right=True)[:, 0]


def uniform_draws(seeds: Sequence[int], count: int) -> Tensor:
    """Return draws_ND in [0, 1), each row from its own generator; made on the CPU, so equal on every device."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    # The default dtype is the process's: transformers changes it while it loads a model, in whichever thread.
    return torch.stack([torch.rand(count, generator=each, dtype=torch.float32) for each in generators])


REJECTION, EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT = "rejection", "exact_greedy_draft", "exact_sampled_draft"
LOSSLESS = (REJECTION, EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT)


@dataclass(frozen=True)
class Proposal:
    """Proposed tokens of one verification step.

    Attributes:
        probs_BKS: Distributions they were drawn from; None if the rule does not need them, or at temperature 0.
        counts_B: Valid tokens per row; the rest is padding.
        ids_S: Token id of each column of probs_BKS, ascending; every other id has probability 0. None if column v is
            token v.
    """

    tokens_BK: Tensor
    probs_BKS: Tensor | None
    counts_B: Tensor
    ids_S: Tensor | None = None

    @classmethod
    def nothing(cls, rows: int, device: torch.device) -> "Proposal":
        tokens_B0 = torch.zeros(rows, 0, dtype=torch.long, device=device)
        return cls(tokens_B0, tokens_B0.new_zeros(rows, 0, 0, dtype=torch.float), tokens_B0.new_zeros(rows))


@dataclass(frozen=True)
class Draws:
    """Uniform numbers in [0, 1) for one verification step; each is used once.

    Attributes:
        accept_BK: Decide if a proposed token is accepted.
        target_BJ: Sample the target's token at each position.
    """

    accept_BK: Tensor
    target_BJ: Tensor


@dataclass(frozen=True)
class Verdict:
    """Outcome of a verification step."""

    accepted_B: Tensor
    next_B: Tensor


Rule = Callable[[Tensor, Proposal, Draws], Verdict]


def judge_rejection(target_BJV: Tensor, proposal: Proposal, draws: Draws) -> Verdict:
    """Apply rejection sampling.

    Args:
        target_BJV: p at every proposed token and after the last.
        proposal: Drawn from its probs_BKS.
    """
    probs_BK = acceptance_probs(target_BJV, proposal)
    accepted_B = leading(draws.accept_BK < probs_BK, proposal.counts_B)
    rest_BV = residual(row_at(target_BJV, accepted_B), draft_at(proposal, accepted_B), proposal.ids_S)
    return Verdict(accepted_B, invert_cumulative(rest_BV, at(draws.target_BJ, accepted_B)))


def judge_exact(target_BJV: Tensor, proposal: Proposal, draws: Draws) -> Verdict:
    """Apply either exact-match rule: the target samples at every position, and its tokens decide."""
    rows, steps, vocab = target_BJV.shape
    drawn = invert_cumulative(target_BJV.reshape(-1, vocab), draws.target_BJ.reshape(-1))
    return follow(drawn.view(rows, steps), proposal)


RULES: dict[str, Rule] = {
    REJECTION: judge_rejection,
    EXACT_GREEDY_DRAFT: judge_exact,
    EXACT_SAMPLED_DRAFT: judge_exact,
}


def follow(choices_BJ: Tensor, proposal: Proposal) -> Verdict:
    """Accept proposed tokens while they equal the target's choices; the next token is its choice too."""
    accepted_B = leading(proposal.tokens_BK == choices_BJ[:, :-1], proposal.counts_B)
    return Verdict(accepted_B, at(choices_BJ, accepted_B))


def acceptance_probs(target_BJV: Tensor, proposal: Proposal) -> Tensor:
    """Return min(1, p(x) / q(x)) of every proposed token x, as [B, K]."""
    assert proposal.probs_BKS is not None
    p_BK = prob_of(target_BJV[:, :-1], proposal.tokens_BK)
    q_BK = prob_of(proposal.probs_BKS, columns_of(proposal.tokens_BK, proposal.ids_S))
    return (p_BK / q_BK).clamp(max=1)  # x was drawn from q, so q(x) > 0 except at padding


def residual(target_BV: Tensor, draft_BS: Tensor, ids_S: Tensor | None = None) -> Tensor:
    """Return (p - q)+, not normalised; p itself if rounding leaves nothing of it.

    Args:
        draft_BS: q over the draft's output ids; no columns if nothing was proposed.
    """
    if draft_BS.shape[-1] == 0:
        return target_BV
    less_BV = target_BV - draft_BS if ids_S is None else target_BV.index_add(-1, ids_S, draft_BS, alpha=-1)
    rest_BV = less_BV.clamp(min=0)
    return rest_BV.where(rest_BV.sum(dim=-1, keepdim=True) > 0, target_BV)


def draft_at(proposal: Proposal, positions_B: Tensor) -> Tensor:
    """Return draft_BS, q at one position of each row.

    Zero after a row's last proposed token, so that the residual is p.
    """
    assert proposal.probs_BKS is not None
    if proposal.probs_BKS.shape[1] == 0:
        return proposal.probs_BKS.new_zeros(len(positions_B), 0)
    inside_B = positions_B < proposal.counts_B
    draft_BS = row_at(proposal.probs_BKS, positions_B.clamp(max=proposal.probs_BKS.shape[1] - 1))
    return draft_BS * inside_B[:, None]


def columns_of(tokens_BK: Tensor, ids_S: Tensor | None) -> Tensor:
    """Return the column of each token in ids_S, which contains it; the token itself if ids_S is None."""
    return tokens_BK if ids_S is None else torch.searchsorted(ids_S, tokens_BK)


def leading(kept_BK: Tensor, counts_B: Tensor) -> Tensor:
    """Count the accepted tokens of each row before the first rejected or padding token."""
    counting_BK = torch.arange(kept_BK.shape[1], device=kept_BK.device) < counts_B[:, None]
    return (kept_BK & counting_BK).long().cumprod(dim=1).sum(dim=1)


def prob_of(probs_BKV: Tensor, tokens_BK: Tensor) -> Tensor:
    return probs_BKV.gather(-1, tokens_BK[:, :, None])[:, :, 0]


def row_at(probs_BJV: Tensor, positions_B: Tensor) -> Tensor:
    return probs_BJV[torch.arange(len(positions_B), device=positions_B.device), positions_B]


def at(values_BJ: Tensor, positions_B: Tensor) -> Tensor:
    """Return [B], the value at one position of each row."""
    return values_BJ.gather(1, positions_B[:, None])[:, 0]


@dataclass(frozen=True)
class Limits:
    """Stopping criteria.

    Attributes:
        stop_ids: Tokens that end a sequence and are its last; may be empty.
    """

    max_new_tokens: int
    stop_ids: AbstractSet[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got max_new_tokens={self.max_new_tokens}.")


@dataclass(frozen=True)
class Seeds:
    """Seeds of three independent random streams.

    Attributes:
        draft: Of the draft's samples.
        accept: Of acceptance.
        target: Of the target's samples; the only stream of plain decoding.
    """

    draft: int = 0
    accept: int = 1
    target: int = 2

    @classmethod
    def of(cls, seed: int) -> "Seeds":
        """Derive three seeds that no other seed derives."""
        return cls(3 * seed, 3 * seed + 1, 3 * seed + 2)


DRAWS = "torch.rand by SeedSequence((stream, row))"  # how `stream` draws; recorded with sampled responses


@dataclass(frozen=True)
class VerificationStep:
    """One verification step, which emitted accepted + 1 tokens.

    Attributes:
        start: Tokens emitted before it.
        num_speculative_tokens: Tokens requested from the proposer.
        proposed: Tokens proposed: fewer near the end of the sequence.
        accepted: A stop token is the target's own and not among them.
        rows: Sequences decoded together, which share the seconds.
        draft_s: Seconds of the draft, for all rows.
        verify_s: Seconds of the target, for all rows.
        looked_up: True if prompt lookup proposed, not the draft.
    """

    start: int
    num_speculative_tokens: int
    proposed: int
    accepted: int
    rows: int
    draft_s: float
    verify_s: float
    looked_up: bool = False

    @property
    def is_behind(self) -> bool:
        """True if the draft has not read its last proposed token, because all requested tokens were accepted."""
        return not self.looked_up and self.accepted == self.proposed == self.num_speculative_tokens


@dataclass(frozen=True)
class Speculation:
    """How a draft is used.

    Attributes:
        num_speculative_tokens: Tokens proposed per step, fewer near the end of the sequence.
        draft_p_min: Confidence (the draft's largest probability at temperature 1) below which it stops proposing in
            this step, in [0, 1]: llama.cpp's `--spec-draft-p-min`; 0 never stops.
    """

    num_speculative_tokens: int = 4
    rule: str = LOSSLESS[0]
    draft_p_min: float = 0.0

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 1:
            raise ValueError(
                f"num_speculative_tokens must be >= 1, got {self.num_speculative_tokens}; plain_decode is for 0."
            )
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}.")
        if not 0 <= self.draft_p_min <= 1:
            raise ValueError(f"draft_p_min must be in [0, 1], got {self.draft_p_min:g}.")


@dataclass(frozen=True)
class Decoded:
    """A decoded sequence.

    Attributes:
        token_ids: The emitted tokens, including a stop token.
        steps: The verification steps; empty for plain decoding.
        prefill_s: Seconds to prefill the batch, with both models if there are two.
        decode_s: Seconds from then to the last token.
        rule: Acceptance method, exact match at temperature 0 whatever was requested; None for plain decoding.
        stopped: True if a stop token ended it, not the length limit.
        logp: log p of every token under the distribution it was drawn from, if sampled without a draft; else empty.
    """

    token_ids: tuple[int, ...]
    steps: tuple[VerificationStep, ...]
    prefill_s: float
    decode_s: float
    rule: str | None = None
    stopped: bool = False
    logp: tuple[float, ...] = ()


@dataclass
class Text:
    """A sequence during decoding.

    Attributes:
        context: The decoder's tokens before generation: the prompt, or the start token of an encoder-decoder.
        missing: Emitted tokens except the last that the draft has not read.
        logp: As in Decoded.
        max_new_tokens: Its own limit; None for that of the batch.
    """

    index: int
    context: tuple[int, ...]
    emitted: list[int] = field(default_factory=list)
    steps: list[VerificationStep] = field(default_factory=list)
    missing: int = 0
    stopped: bool = False
    logp: list[float] = field(default_factory=list)
    max_new_tokens: int | None = None

    @property
    def length(self) -> int:
        return len(self.context) + len(self.emitted)

    def last(self, count: int) -> list[int]:
        """Return the last `count` >= 1 tokens of context and response."""
        if count <= len(self.emitted):  # the usual case; the rest takes time linear in the length
            return self.emitted[-count:]
        return self.everything()[-count:]

    def everything(self) -> list[int]:
        return [*self.context, *self.emitted]

    def num_left(self, limits: Limits) -> int:
        return (self.max_new_tokens or limits.max_new_tokens) - len(self.emitted)

    def extend(self, token_ids: Sequence[int], limits: Limits) -> int:
        """Emit tokens up to the one that ends the sequence; return how many were emitted."""
        for count, token in enumerate(token_ids, start=1):
            self.emitted.append(token)
            self.stopped = token in limits.stop_ids
            if self.stopped:
                return count
        return len(token_ids)

    def is_finished(self, limits: Limits) -> bool:
        return self.stopped or self.num_left(limits) <= 0


def row_seed(index: int, repetition: int = 0) -> int:
    """Return the seed of one prompt's draws in one repetition, unique to both.

    Args:
        index: Of the prompt among all that are decoded, in this call or another, below 2**32.
        repetition: From 0, below 2**32.
    """
    return repetition << 32 | index


def stream_seed(seed: int, row: int) -> int:
    return int(np.random.SeedSequence((seed, row % 2**64)).generate_state(1, np.uint64)[0] >> 1)


def stream(seed: int, row_seeds: Sequence[int], count: int, device: torch.device) -> Tensor:
    """Return draws_BD of one stream; a row's depend only on the stream's seed and its own, not on its neighbours.

    Args:
        seed: Of the stream, >= 0.
        row_seeds: From -2**63 to 2**64 - 1.
    """
    return uniform_draws([stream_seed(seed, row) for row in row_seeds], count).to(device)


def window(draws_BD: Tensor, texts: Sequence[Text], width: int) -> Tensor:
    """Return the draws for the next `width` tokens of each sequence, as [B, K]."""
    starts_B1 = torch.tensor([[len(text.emitted)] for text in texts], device=draws_BD.device)
    indices_B1 = torch.tensor([[text.index] for text in texts], device=draws_BD.device)
    return draws_BD[indices_B1, starts_B1 + torch.arange(width, device=draws_BD.device)]

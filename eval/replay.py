"""Exact acceptance for every k from one teacher-forced pass of each model over the target's own responses.

Speculative decoding emits the target's response whatever the draft proposes, so the response fixes every context in
which a verification step can start. Given the response y, each rule accepts position t with its own probability,
independently of other positions:

    rejection             min(1, q / p)(y_t)   since P(accept and emit x) = min(p, q)(x) and P(emit x) = p(x)
    exact_greedy_draft    [argmax q = y_t]     the draft proposes its argmax; accepted if the target sampled it
    exact_sampled_draft   q(y_t)               the draft proposes a sample; accepted if the target sampled it

p and q are the distributions that tokens are drawn from: after penalty, temperature and filters, which both models
share. At temperature 0 all three rules equal the second. Counts at temperature > 0 are expected values over these
draws, not samples of them.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", sec. 2.3 and theorem 3.5
(arXiv 2211.17192); conditioning on the response is not in the paper.

A response of num_tokens tokens is emitted in verification steps. A step that starts after `start` tokens proposes at
most min(k, num_tokens - start - 1) tokens and emits the accepted ones plus one of the target's own; so the last token
of a response (its stop token, if it has one) is always the target's and never counts as accepted.

Shape suffixes used in this file:
    B = 1 sequence
    T = tokens of the response
    V = vocabulary entries
    K = position in a step (1..k)
    A = accepted tokens of a step (0..k)
    X = leading dimensions that are summed over
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from architectures.vocabulary_head import head_ids, spread
from eval.decoding.kv_cache import without_cudnn
from eval.decoding.sampling import (
    EXACT_GREEDY_DRAFT,
    EXACT_SAMPLED_DRAFT,
    LOSSLESS,
    REJECTION,
    Sampling,
    at,
    log_distribution,
    penalised,
    seen_along,
)
from eval.decoding.speculative import first_tokens
from eval.intervals import Array, Columns
from eval.models import shared_vocab_size


@dataclass(frozen=True)
class ReplayCounts:
    """Verification steps of one response, or of several pooled. Expected values if the rule is random.

    Attributes:
        steps: Verification steps.
        possible: Per position k, the steps in which the response had at least k tokens left to accept.
        reached: Of those, the steps that accepted at least k - 1 tokens, so that position k was decided.
        accepted: Of those, the steps that accepted at least k tokens.
    """

    steps: float
    possible: tuple[float, ...]
    reached: tuple[float, ...]
    accepted: tuple[float, ...]

    @property
    def proposed_tokens(self) -> float:
        """Proposed tokens, accepted or not, within the response."""
        return sum(self.possible)

    @property
    def accepted_tokens(self) -> float:
        return sum(self.accepted)

    @property
    def emitted_tokens(self) -> float:
        """Length of the response: accepted tokens plus one per step."""
        return self.accepted_tokens + self.steps

    @property
    def fully_accepted_steps(self) -> float:
        return self.accepted[-1]

    @property
    def histogram(self) -> tuple[float, ...]:
        """Steps that accepted exactly 0, 1, ... k tokens; they sum to `steps`."""
        at_least = (self.steps, *self.accepted, 0.0)
        return tuple(more - fewer for more, fewer in pairwise(at_least))


def count_visits(visits_T: Array, tail_TK: Array, remaining_T: Array) -> ReplayCounts:
    """Count steps, observed or expected.

    Args:
        visits_T: Steps that start at each position: 0 or 1 in a trace, a probability in a replay.
        tail_TK: Probability that a step starting at T accepts at least k tokens: 0 or 1 in a trace.
        remaining_T: Tokens that a step starting at T may accept, `remaining_after` or fewer.
    """
    num_tokens, k = tail_TK.shape
    possible_TK = visits_T[:, None] * (np.arange(1, k + 1) <= remaining_T[:, None])
    tail_before_TK = np.concatenate([np.ones((num_tokens, 1)), tail_TK[:, :-1]], axis=1)
    return ReplayCounts(
        steps=float(visits_T.sum()),
        possible=per_position(possible_TK),
        reached=per_position(possible_TK * tail_before_TK),
        accepted=per_position(possible_TK * tail_TK),
    )


def count_trace(steps: Iterable[tuple[int, int]], *, num_tokens: int, num_speculative_tokens: int) -> ReplayCounts:
    """Count the steps of a trace.

    Args:
        steps: Start and number of accepted tokens of each step.
        num_speculative_tokens: Tokens proposed per step, unless fewer are left.
    """
    proposals = ((start, num_speculative_tokens, accepted) for start, accepted in steps)
    return count_proposals(proposals, num_tokens=num_tokens, most=num_speculative_tokens)


def count_proposals(steps: Iterable[tuple[int, int, int]], *, num_tokens: int, most: int) -> ReplayCounts:
    """Count the steps of a trace with varying numbers of proposed tokens, as when a draft stops early.

    Args:
        steps: Start, proposed and accepted tokens of each step. Proposals beyond the end do not count.
        most: Positions to count, at least the largest number of proposed tokens.
    """
    visits_T, tail_TK, remaining_T = np.zeros(num_tokens), np.zeros((num_tokens, most)), remaining_after(num_tokens)
    for start, proposed, accepted in steps:
        visits_T[start] += 1
        tail_TK[start, :accepted] = 1
        remaining_T[start] = min(remaining_T[start], proposed)
    return count_visits(visits_T, tail_TK, remaining_T)


def remaining_after(num_tokens: int) -> Array:
    """Return [T], the tokens that a step starting at T may accept; never the last of the response."""
    return np.arange(num_tokens - 1, -1, -1, dtype=np.float64)


def pool(counts: Sequence[ReplayCounts]) -> ReplayCounts:
    return ReplayCounts(
        steps=sum(text.steps for text in counts),
        possible=per_position(np.array([text.possible for text in counts])),
        reached=per_position(np.array([text.reached for text in counts])),
        accepted=per_position(np.array([text.accepted for text in counts])),
    )


def tau(counts: ReplayCounts) -> float:
    """Return the mean acceptance length, the target's own token included: 1..k + 1.

    Source: block efficiency of Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding",
    sec. 3.1 (arXiv 2211.17192), counted as in vLLM's `vllm/v1/spec_decode/metrics.py`.
    """
    return counts.emitted_tokens / counts.steps


def per_position(count_XK: Array) -> tuple[float, ...]:
    return tuple(float(count) for count in count_XK.sum(axis=0))


def rule_names(temperature: float) -> tuple[str, ...]:
    """Return the lossless acceptance rules; a scorecard leads with the first."""
    return (EXACT_GREEDY_DRAFT,) if temperature == 0 else LOSSLESS


def rule_name(temperature: float) -> str:
    """Return the rule a scorecard leads with: exact match at temperature 0, else rejection sampling."""
    return rule_names(temperature)[0]


@dataclass(frozen=True)
class Accepts:
    """Acceptance by one rule along one response. Both arrays are [T].

    Attributes:
        accept: Probability that y_t comes from the draft if proposed.
        alpha: Probability that a proposal at t is accepted: the mean of accept over y_t ~ p.
    """

    accept: Array
    alpha: Array


@dataclass(frozen=True)
class Replay:
    """A draft replayed along one response. Every array is [T].

    Attributes:
        rules: By name, those of rule_names.
        match: 1 if both models have the same argmax after a repetition penalty, else 0.
        target_logp: log p(y_t) as sampled, in nats; 0 or -inf at temperature 0, -inf for tokens excluded by a filter.
        draft_logp: The same for the draft; -inf outside its vocabulary.
        target_entropy: In nats, of the target's distribution at temperature 1, whatever the response's temperature.
        covered: 1 if y_t is an output id of the draft, else 0; all 1 with the full vocabulary.
    """

    rules: Mapping[str, Accepts]
    match: Array
    target_logp: Array
    draft_logp: Array
    target_entropy: Array
    covered: Array

    @property
    def num_tokens(self) -> int:
        return len(self.match)


@torch.inference_mode()
@without_cudnn()
def response_logits(model: PreTrainedModel, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Tensor:
    """Compute teacher-forced logits of a response.

    Args:
        prompt_ids: At least one token; encoder input for an encoder-decoder model.
        response_ids: The target's response, at least one token.

    Returns:
        Logits [T, V] in float32, row t for token t; -inf for ids outside a reduced vocabulary.
    """
    if model.config.is_encoder_decoder:
        inputs_BT = torch.tensor([list(prompt_ids)], device=model.device)
        ids_BT = torch.tensor([[model.config.decoder_start_token_id, *response_ids[:-1]]], device=model.device)
        return model(input_ids=inputs_BT, decoder_input_ids=ids_BT, use_cache=False).logits[0].float()
    ids_BT = torch.tensor([[*prompt_ids, *response_ids[:-1]]], device=model.device)
    logits = model(input_ids=ids_BT, use_cache=False, logits_to_keep=len(response_ids)).logits[0].float()
    return whole_vocabulary(model, logits)


def whole_vocabulary(model: PreTrainedModel, logits: Tensor) -> Tensor:
    """Spread logits [T, V] of a reduced vocabulary over all ids, with -inf elsewhere."""
    ids_K = head_ids(model)
    if ids_K is None:
        return logits
    return spread(logits, ids_K, model.config.get_text_config(decoder=True).vocab_size, elsewhere=-torch.inf)


def replay_response(
    target_logits_TV: Tensor,
    draft_logits_TV: Tensor,
    response_ids: Sequence[int],
    *,
    sampling: Sampling,
    prompt_ids: Sequence[int] | None = None,
) -> Replay:
    """Compute acceptance probabilities along one response.

    Args:
        response_ids: The response, generated by the target with these sampling settings.
        prompt_ids: The decoder's tokens before the response; needed only with a repetition penalty.

    Raises:
        ValueError: If the shapes differ, or there is a penalty and no prompt.
    """
    if target_logits_TV.shape != draft_logits_TV.shape:
        raise ValueError(
            f"target and draft logits must have one shape [tokens, vocab], got {tuple(target_logits_TV.shape)} "
            f"and {tuple(draft_logits_TV.shape)}. Score drafts with the target's vocabulary."
        )
    if prompt_ids is None and sampling.repetition_penalty != 1:
        raise ValueError("a repetition penalty needs prompt_ids, got none.")
    seen_TV = seen_along(prompt_ids or (), response_ids, sampling, target_logits_TV)
    target_logp_TV = log_distribution(target_logits_TV, sampling, seen_TV)
    draft_logp_TV = log_distribution(draft_logits_TV, sampling, seen_TV)
    response_T = torch.tensor(response_ids, device=target_logits_TV.device)

    def likeliest(logits_TV: Tensor) -> Tensor:
        return penalised(logits_TV, sampling, seen_TV).argmax(dim=-1)

    return Replay(
        rules={
            rule: Accepts(*map(as_array, ACCEPTS[rule](target_logp_TV, draft_logp_TV, response_T)))
            for rule in rule_names(sampling.temperature)
        },
        match=as_array(likeliest(target_logits_TV) == likeliest(draft_logits_TV)),
        target_logp=as_array(at(target_logp_TV, response_T)),
        draft_logp=as_array(at(draft_logp_TV, response_T)),
        target_entropy=as_array(torch.special.entr(target_logits_TV.softmax(dim=-1)).sum(dim=-1)),
        covered=as_array(at(draft_logits_TV, response_T) > -torch.inf),
    )


def replay_pair(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    *,
    sampling: Sampling,
    target_logits_TV: Tensor | None = None,
) -> Replay:
    """Replay two models along one response; ids that only one of them has are left out.

    Args:
        target_logits_TV: `response_logits` of the target, if known.
    """
    if target_logits_TV is None:
        target_logits_TV = response_logits(target, prompt_ids, response_ids)
    vocab_size = shared_vocab_size(target, draft)
    return replay_response(
        target_logits_TV[:, :vocab_size],
        response_logits(draft, prompt_ids, response_ids)[:, :vocab_size],
        response_ids,
        sampling=sampling,
        prompt_ids=first_tokens(target, prompt_ids),
    )


def rejection(target_logp_TV: Tensor, draft_logp_TV: Tensor, response_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return accept_T and alpha_T = sum_x min(p, q)(x) of rejection sampling."""
    accept_T = rejection_accepts(at(target_logp_TV, response_T), at(draft_logp_TV, response_T))
    return accept_T, torch.minimum(target_logp_TV, draft_logp_TV).exp().sum(dim=-1)


def rejection_accepts(target_logp_T: Tensor, draft_logp_T: Tensor) -> Tensor:
    """Return accept_T = min(1, q / p)(y_t); 0 if q(y_t) = 0, even when rounding makes p(y_t) = 0 too.

    Args:
        target_logp_T: log p(y_t); -inf for a sampled token that rounding puts outside a filter.
    """
    accept_T = (draft_logp_T - target_logp_T).clamp(max=0).exp()
    return torch.where(draft_logp_T.isneginf(), 0.0, accept_T)


def exact_greedy_draft(target_logp_TV: Tensor, draft_logp_TV: Tensor, response_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return accept_T and alpha_T = p(argmax q), accepting the draft's argmax if it equals the target's token.

    At temperature 0 the response is the target's, even if rounding makes this pass disagree with it.
    """
    proposed_T = draft_logp_TV.argmax(dim=-1)
    return proposed_T == response_T, at(target_logp_TV, proposed_T).exp()


def exact_sampled_draft(target_logp_TV: Tensor, draft_logp_TV: Tensor, response_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return accept_T and alpha_T = sum_x p(x) q(x), accepting a draft sample if it equals the target's token."""
    return at(draft_logp_TV, response_T).exp(), (target_logp_TV + draft_logp_TV).exp().sum(dim=-1)


ACCEPTS = {REJECTION: rejection, EXACT_GREEDY_DRAFT: exact_greedy_draft, EXACT_SAMPLED_DRAFT: exact_sampled_draft}


def replay_counts(accept_T: Array, *, num_speculative_tokens: int) -> ReplayCounts:
    """Return exact expected counts for one response; integers if every probability is 0 or 1."""
    tail_TK = acceptance_tails(accept_T, num_speculative_tokens)
    return count_visits(step_starts(tail_TK), tail_TK, remaining_after(len(tail_TK)))


def binned_counts(accept_T: Array, bin_T: NDArray[np.int64], *, num_speculative_tokens: int) -> dict[int, ReplayCounts]:
    """Return the same counts split by the bin of the position at which a step starts; pooled they give the total."""
    tail_TK = acceptance_tails(accept_T, num_speculative_tokens)
    visits_T, remaining_T = step_starts(tail_TK), remaining_after(len(tail_TK))
    return {
        int(number): count_visits(visits_T * (bin_T == number), tail_TK, remaining_T) for number in np.unique(bin_T)
    }


def acceptance_tails(accept_T: Array, num_speculative_tokens: int) -> Array:
    """Return [T, K], the probability that a step starting at t accepts at least k tokens, never the response's last."""
    num_tokens = len(accept_T)
    proposable_T = np.append(accept_T[:-1], 0.0)
    padded = np.concatenate([proposable_T, np.zeros(num_speculative_tokens)])
    window_TK = np.lib.stride_tricks.sliding_window_view(padded, num_speculative_tokens)[:num_tokens]
    return window_TK.cumprod(axis=1, dtype=np.float64)


def step_starts(tail_TK: Array) -> Array:
    """Return [T], the probability that a step starts at t, by forward recursion.

    The forward form of N(s) = 1 + sum_a P(A = a at s) N(s + a + 1): it gives the positions of the steps in addition to
    their number, which is the sum.
    """
    num_tokens = len(tail_TK)
    exactly_TA = -np.diff(tail_TK, axis=1, prepend=1.0, append=0.0)
    visits_T = np.zeros(num_tokens)
    visits_T[0] = 1.0
    for start in range(num_tokens):
        reached = visits_T[start + 1 : start + 1 + exactly_TA.shape[1]]
        reached += visits_T[start] * exactly_TA[start, : len(reached)]
    return visits_T


def as_array(values_T: Tensor) -> Array:
    return values_T.double().cpu().numpy()


CONTEXT_EDGES = tuple(512 << doubled for doubled in range(12))  # to 1,048,576; preceding tokens of prompt and response
POSITION_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # preceding tokens of the response
ENTROPY_EDGES_NATS = (0.1, 0.5, 1.0, 2.0, 4.0)
NO_TASK, NO_CATEGORY = "without a task", "without a category"


@dataclass(frozen=True)
class ResponseScore:
    """Acceptance along one response, or along the tokens of one of its bins.

    Attributes:
        prompt: Index of the prompt; a multi-turn conversation is one prompt.
        matches: [T], 1 if both models have the same argmax, else 0.
        alpha_sum: Sum over tokens of the probability that a proposal is accepted.
        accept_sum: Sum over tokens of the probability that the target's own token comes from the draft.
        num_changed: At temperature 0, tokens that are not the argmax of the teacher-forced target.
        num_covered: Tokens that are output ids of the draft: all of them with the full vocabulary.
        counts: By k, expected counts of the verification steps that start at these tokens.
    """

    prompt: int
    matches: Array
    alpha_sum: float
    accept_sum: float
    num_changed: int
    num_covered: int
    counts: Mapping[int, ReplayCounts]

    @property
    def num_tokens(self) -> int:
        return len(self.matches)


@dataclass(frozen=True)
class DraftScore:
    """Acceptance of a draft over all responses at one temperature, under one rule.

    Attributes:
        has_small_head: True if the draft has a reduced vocabulary.
    """

    draft: str
    temperature: float
    rule: str
    responses: Sequence[ResponseScore]
    has_small_head: bool = False

    @property
    def ks(self) -> list[int]:
        """Replayed values of k, ascending."""
        return sorted(self.responses[0].counts)

    def per_prompt(self, value: Callable[[ResponseScore], float]) -> list[float]:
        sums: dict[int, float] = {}
        for response in self.responses:
            sums[response.prompt] = sums.get(response.prompt, 0) + value(response)
        return list(sums.values())

    def columns(self, value: Callable[[ResponseScore], float]) -> Columns:
        """Return, per prompt, the sum of a value of its responses, and tokens."""
        return self.per_prompt(value), self.per_prompt(lambda response: response.num_tokens)

    def alpha_columns(self) -> Columns:
        """Return, per prompt, the sum of acceptance probabilities, and tokens."""
        return self.columns(lambda response: response.alpha_sum)

    def accept_columns(self) -> Columns:
        """Return, per prompt, the sum of the probabilities that the target's tokens come from the draft, and tokens."""
        return self.columns(lambda response: response.accept_sum)

    def coverage_columns(self) -> Columns:
        """Return, per prompt, tokens that are output ids of the draft, and tokens."""
        return self.columns(lambda response: response.num_covered)

    def match_columns(self) -> Columns:
        """Return, per prompt, tokens with the same argmax in both models, and tokens."""
        return self.columns(lambda response: response.matches.sum())

    def tau_columns(self, num_speculative_tokens: int) -> Columns:
        """Return, per prompt, emitted tokens and verification steps."""
        return (
            self.count_column(num_speculative_tokens, lambda counts: counts.emitted_tokens),
            self.count_column(num_speculative_tokens, lambda counts: counts.steps),
        )

    def count_column(self, num_speculative_tokens: int, count: Callable[[ReplayCounts], float]) -> list[float]:
        return self.per_prompt(lambda response: count(response.counts[num_speculative_tokens]))

    def pooled(self, num_speculative_tokens: int) -> ReplayCounts:
        return pool([response.counts[num_speculative_tokens] for response in self.responses])


@dataclass(frozen=True)
class ReplayedResponse:
    """A draft replayed along one response.

    Attributes:
        prompt: Index of the prompt; a multi-turn conversation is one prompt.
        prompt_len: Tokens of the prompt, with earlier turns.
    """

    prompt: int
    category: str | None
    replay: Replay
    task: str | None = None
    prompt_len: int = 0


Parting = tuple[list[str], list[NDArray[np.int64]]]  # labels in order; per response, the label index of every token


def part_tokens(responses: Sequence[ReplayedResponse]) -> dict[str, Parting]:
    """Return every breakdown of the tokens: by task, category, output position, context length and entropy.

    Tasks and categories are in alphabetical order; responses without one come last. A breakdown may fill only one bin.
    """
    replays = [response.replay for response in responses]
    parted: dict[str, Parting] = {}
    for by, without in (("task", NO_TASK), ("category", NO_CATEGORY)):
        names = [getattr(response, by) for response in responses]
        labels = [*sorted({name for name in names if name is not None}), without]
        indices = [len(labels) - 1 if name is None else labels.index(name) for name in names]
        pairs = zip(replays, indices, strict=True)
        parted[by] = labels, [np.full(replay.num_tokens, index) for replay, index in pairs]
    parted["output_position"] = token_labels(POSITION_EDGES), [position_bins(each.num_tokens) for each in replays]
    parted["context_length"] = (
        token_labels(CONTEXT_EDGES),
        [np.digitize(each.prompt_len + np.arange(each.replay.num_tokens), CONTEXT_EDGES) for each in responses],
    )
    entropy_bins = [np.digitize(each.target_entropy, ENTROPY_EDGES_NATS) for each in replays]
    parted["entropy"] = nats_labels(ENTROPY_EDGES_NATS), entropy_bins
    return parted


def position_bins(num_tokens: int) -> NDArray[np.int64]:
    """Return bin_T of the tokens of a response; the first token has position 0."""
    return np.digitize(np.arange(num_tokens), POSITION_EDGES)


def token_labels(edges: Sequence[int]) -> list[str]:
    """Label integer bins: 0-15, 16-31, ... and from the last edge on."""
    inner = [f"{low}-{high - 1}" for low, high in zip((0, *edges), edges, strict=False)]
    return [*inner, f"{edges[-1]} and more"]


def nats_labels(edges: Sequence[float]) -> list[str]:
    """Label real-valued bins; an edge belongs to the bin above it."""
    inner = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    return [f"below {edges[0]:g}", *inner, f"{edges[-1]:g} and more"]


PartedScores = Mapping[str, Mapping[str, DraftScore]]  # breakdown -> bin -> score


@dataclass(frozen=True)
class ReplayedDraft:
    """A draft replayed along all responses at one temperature; see DraftScore."""

    draft: str
    temperature: float
    responses: Sequence[ReplayedResponse]
    has_small_head: bool = False

    def scores(self, ks: Sequence[int]) -> list[DraftScore]:
        """Return one score per rule over whole responses; a scorecard leads with the first."""
        return [
            self.score(rule, [score_response(response, rule=rule, ks=ks) for response in self.responses])
            for rule in rule_names(self.temperature)
        ]

    def parted_scores(self, ks: Sequence[int]) -> PartedScores:
        """Return scores under the leading rule for every non-empty bin, in the order of the labels."""
        rule, parted = rule_name(self.temperature), {}
        for by, (labels, bins) in part_tokens(self.responses).items():
            rows: dict[int, list[ResponseScore]] = {}
            for response, bin_T in zip(self.responses, bins, strict=True):
                for number, part in score_parts(response, bin_T, rule=rule, ks=ks).items():
                    rows.setdefault(number, []).append(part)
            parted[by] = {labels[number]: self.score(rule, rows[number]) for number in sorted(rows)}
        return parted

    def score(self, rule: str, responses: Sequence[ResponseScore]) -> DraftScore:
        return DraftScore(self.draft, self.temperature, rule, responses, self.has_small_head)


def score_response(response: ReplayedResponse, *, rule: str, ks: Sequence[int]) -> ResponseScore:
    one_bin_T = np.zeros(response.replay.num_tokens, dtype=np.int64)
    return score_parts(response, one_bin_T, rule=rule, ks=ks)[0]


def score_parts(
    response: ReplayedResponse, bin_T: NDArray[np.int64], *, rule: str, ks: Sequence[int]
) -> dict[int, ResponseScore]:
    """Score each bin of one response: sums over its tokens, and counts of the steps that start at them."""
    replay, accepts = response.replay, response.replay.rules[rule]
    counts = {k: binned_counts(accepts.accept, bin_T, num_speculative_tokens=k) for k in ks}
    return {
        int(number): ResponseScore(
            prompt=response.prompt,
            matches=replay.match[bin_T == number],
            alpha_sum=float(accepts.alpha[bin_T == number].sum()),
            accept_sum=float(accepts.accept[bin_T == number].sum()),
            num_changed=int(np.isneginf(replay.target_logp[bin_T == number]).sum()),
            num_covered=int(replay.covered[bin_T == number].sum()),
            counts={k: by_bin[int(number)] for k, by_bin in counts.items()},
        )
        for number in np.unique(bin_T)
    }

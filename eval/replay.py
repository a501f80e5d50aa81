"""Exact acceptance for every lookahead from one teacher-forced pass of each model over the target's own text.

Speculative decoding emits the target's text whatever the draft proposes, so the text fixes every context in which a
round can start. Given the text y, each rule accepts position t with a chance of its own, independently of the others:

    rejection             min(1, q / p)(y_t)   since P(accept and emit x) = min(p, q)(x) and P(emit x) = p(x)
    exact_greedy_draft    [argmax q = y_t]     the draft proposes its argmax; kept if the target sampled the same
    exact_sampled_draft   q(y_t)               the draft proposes a sample; kept if the target sampled the same

p and q are what is drawn from: after penalty, temperature and filters, the same of both. At temperature 0 all three are
the second. Counts at temperature > 0 are expected values over these draws, not samples of them.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", sec. 2.3 and theorem 3.5
(arXiv 2211.17192); the conditioning on the text is ours.

A text of num_tokens tokens is emitted in rounds. A round that starts when `start` tokens are out proposes at most
min(lookahead, num_tokens - start - 1) tokens and emits the accepted ones plus one of the target's own; so the last
token of a text (its stop token, if it has one) is always the target's and never counts as accepted.

Shape suffixes used in this file:
    B = 1 sequence
    T = tokens of the answer
    V = vocabulary entries
    K = position in a round (1..lookahead)
    A = accepted tokens of a round (0..lookahead)
    X = any sums before it
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
    log_distribution,
    penalised,
    seen_along,
)
from eval.decoding.speculative import first_tokens
from eval.intervals import Array
from eval.models import shared_vocab_size


@dataclass(frozen=True)
class Counts:
    """What happened in the rounds of one text, or of several pooled. Expected values where the rule is random.

    Attributes:
        rounds: Draft-then-verify cycles.
        possible: Per position k, the rounds in which the text had k tokens left to accept.
        reached: Of those, the rounds that accepted at least k - 1 tokens, so that position k was decided.
        accepted: Of those, the rounds that accepted at least k tokens.
    """

    rounds: float
    possible: tuple[float, ...]
    reached: tuple[float, ...]
    accepted: tuple[float, ...]

    @property
    def proposed_tokens(self) -> float:
        """Draft tokens proposed, kept or not, as far as the text had tokens left."""
        return sum(self.possible)

    @property
    def accepted_tokens(self) -> float:
        return sum(self.accepted)

    @property
    def emitted_tokens(self) -> float:
        """Draft tokens kept plus the target's own, one a round: the length of the text."""
        return self.accepted_tokens + self.rounds

    @property
    def fully_accepted_rounds(self) -> float:
        """Rounds that kept all `lookahead` tokens."""
        return self.accepted[-1]

    @property
    def histogram(self) -> tuple[float, ...]:
        """Rounds that kept exactly 0, 1, ... lookahead tokens; their sum is `rounds`."""
        at_least = (self.rounds, *self.accepted, 0.0)
        return tuple(more - fewer for more, fewer in pairwise(at_least))


def count_visits(visits_T: Array, tail_TK: Array, remaining_T: Array) -> Counts:
    """The one counting function.

    Args:
        visits_T: Rounds that start at each position of the text: 0 or 1 in a trace, a probability in a replay.
        tail_TK: Chance that a round starting at T accepts at least k tokens: 0 or 1 in a trace.
        remaining_T: Tokens that a round starting at T may accept, from `remaining_after` or fewer.
    """
    num_tokens, lookahead = tail_TK.shape
    possible_TK = visits_T[:, None] * (np.arange(1, lookahead + 1) <= remaining_T[:, None])
    tail_before_TK = np.concatenate([np.ones((num_tokens, 1)), tail_TK[:, :-1]], axis=1)
    return Counts(
        rounds=float(visits_T.sum()),
        possible=per_position(possible_TK),
        reached=per_position(possible_TK * tail_before_TK),
        accepted=per_position(possible_TK * tail_TK),
    )


def count_trace(rounds: Iterable[tuple[int, int]], *, num_tokens: int, lookahead: int) -> Counts:
    """Counts of rounds that happened.

    Args:
        rounds: Start and number of accepted tokens of each round.
        num_tokens: Length of the text they emitted.
        lookahead: Tokens a round proposes where the text has as many left.
    """
    asked = ((start, lookahead, accepted) for start, accepted in rounds)
    return count_proposals(asked, num_tokens=num_tokens, most=lookahead)


def count_proposals(rounds: Iterable[tuple[int, int, int]], *, num_tokens: int, most: int) -> Counts:
    """Counts of rounds that happened and differ in how many tokens they proposed, as where a draft stops early.

    Args:
        rounds: Start, number of proposed and number of accepted tokens of each round. What was proposed behind the end
            of the text does not count.
        num_tokens: Length of the text they emitted.
        most: Positions to count, at least as many as any round proposed.
    """
    visits_T, tail_TK, remaining_T = np.zeros(num_tokens), np.zeros((num_tokens, most)), remaining_after(num_tokens)
    for start, proposed, accepted in rounds:
        visits_T[start] += 1
        tail_TK[start, :accepted] = 1
        remaining_T[start] = min(remaining_T[start], proposed)
    return count_visits(visits_T, tail_TK, remaining_T)


def remaining_after(num_tokens: int) -> Array:
    """[T]: tokens that a round starting at T may accept in a text of so many; the last is never among them."""
    return np.arange(num_tokens - 1, -1, -1, dtype=np.float64)


def pool(counts: Sequence[Counts]) -> Counts:
    """Counts of several texts together."""
    return Counts(
        rounds=sum(text.rounds for text in counts),
        possible=per_position(np.array([text.possible for text in counts])),
        reached=per_position(np.array([text.reached for text in counts])),
        accepted=per_position(np.array([text.accepted for text in counts])),
    )


def tau(counts: Counts) -> float:
    """Mean acceptance length, the target's own token included: 1..lookahead + 1.

    Source: block efficiency of Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding",
    sec. 3.1 (arXiv 2211.17192), counted as in vLLM's `vllm/v1/spec_decode/metrics.py`.
    """
    return counts.emitted_tokens / counts.rounds


def ratio(numerator: float, denominator: float) -> float | None:
    """A rate, or None where nothing was counted."""
    return numerator / denominator if denominator else None


def per_position(count_XK: Array) -> tuple[float, ...]:
    """Sums over everything but the position in the round."""
    return tuple(float(count) for count in count_XK.sum(axis=0))


def rule_names(temperature: float) -> tuple[str, ...]:
    """How acceptance may be decided without changing the target's text; the first is the one a scorecard leads with."""
    return (EXACT_GREEDY_DRAFT,) if temperature == 0 else LOSSLESS


def rule_name(temperature: float) -> str:
    """The rule a scorecard leads with: an equal token at temperature 0, else rejection sampling."""
    return rule_names(temperature)[0]


@dataclass(frozen=True)
class Accepts:
    """How one rule decides along one answer. Both arrays are [T].

    Attributes:
        accept: Chance that y_t comes from the draft if a round proposes there.
        alpha: Chance that a proposal at t is kept, whichever token the target emits: the mean of accept over y_t ~ p.
    """

    accept: Array
    alpha: Array


@dataclass(frozen=True)
class Replay:
    """What a draft would do along one answer of the target. Every array is [T].

    Attributes:
        rules: By name, those of rule_names.
        match: 1 where the draft finds likeliest what the target does, after a repetition penalty; else 0.
        target_logp: log p(y_t) as sampled, in nats; 0 or -inf at temperature 0, and -inf where a filter leaves it out.
        draft_logp: The same for the draft; -inf where it cannot say the token.
        target_entropy: Of the target's own distribution, at temperature 1 whatever the answer's, in nats.
        covered: 1 where y_t is an output id of the draft, else 0; 1 everywhere unless it has a small head.
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
def answer_logits(model: PreTrainedModel, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Tensor:
    """What a model expects at each token of an answer, given the prompt and the tokens before.

    Args:
        model: Either model of a pair.
        prompt_ids: At least one token; of an encoder-decoder model its input.
        answer_ids: The target's own continuation, at least one token.

    Returns:
        Logits [T, V] in float32, row t for answer token t; -inf for every id that is no output id of a small head.
    """
    if model.config.is_encoder_decoder:
        inputs_BT = torch.tensor([list(prompt_ids)], device=model.device)
        ids_BT = torch.tensor([[model.config.decoder_start_token_id, *answer_ids[:-1]]], device=model.device)
        return model(input_ids=inputs_BT, decoder_input_ids=ids_BT, use_cache=False).logits[0].float()
    ids_BT = torch.tensor([[*prompt_ids, *answer_ids[:-1]]], device=model.device)
    logits = model(input_ids=ids_BT, use_cache=False, logits_to_keep=len(answer_ids)).logits[0].float()
    return whole_vocabulary(model, logits)


def whole_vocabulary(model: PreTrainedModel, logits: Tensor) -> Tensor:
    """Logits [T, V] of what a model says: those of a small head at its ids and -inf elsewhere."""
    ids_K = head_ids(model)
    if ids_K is None:
        return logits
    return spread(logits, ids_K, model.config.get_text_config(decoder=True).vocab_size, elsewhere=-torch.inf)


def replay_answer(
    target_logits_TV: Tensor,
    draft_logits_TV: Tensor,
    answer_ids: Sequence[int],
    *,
    sampling: Sampling,
    prompt_ids: Sequence[int] | None = None,
) -> Replay:
    """Accept chances along one answer.

    Args:
        target_logits_TV: From answer_logits of the target; float32.
        draft_logits_TV: The same of the draft.
        answer_ids: The answer, decoded by the target with this sampling.
        sampling: How tokens are chosen of both; at temperature 0 only the argmax counts.
        prompt_ids: What the decoder has before the answer, which a repetition penalty asks for; else it may be left
            out.

    Raises:
        ValueError: If the logits have two shapes, or there is a penalty and no prompt.
    """
    if target_logits_TV.shape != draft_logits_TV.shape:
        raise ValueError(
            f"target and draft logits must have one shape [answer tokens, vocab], got {tuple(target_logits_TV.shape)} "
            f"and {tuple(draft_logits_TV.shape)}. Score drafts with the target's vocabulary."
        )
    if prompt_ids is None and sampling.repetition_penalty != 1:
        raise ValueError("a repetition penalty asks which tokens stand in the prompt, got no prompt_ids.")
    seen_TV = seen_along(prompt_ids or (), answer_ids, sampling, target_logits_TV)
    target_logp_TV = log_distribution(target_logits_TV, sampling, seen_TV)
    draft_logp_TV = log_distribution(draft_logits_TV, sampling, seen_TV)
    answer_T = torch.tensor(answer_ids, device=target_logits_TV.device)

    def likeliest(logits_TV: Tensor) -> Tensor:
        return penalised(logits_TV, sampling, seen_TV).argmax(dim=-1)

    return Replay(
        rules={
            rule: Accepts(*map(as_array, ACCEPTS[rule](target_logp_TV, draft_logp_TV, answer_T)))
            for rule in rule_names(sampling.temperature)
        },
        match=as_array(likeliest(target_logits_TV) == likeliest(draft_logits_TV)),
        target_logp=as_array(value_at(answer_T, target_logp_TV)),
        draft_logp=as_array(value_at(answer_T, draft_logp_TV)),
        target_entropy=as_array(torch.special.entr(target_logits_TV.softmax(dim=-1)).sum(dim=-1)),
        covered=as_array(value_at(answer_T, draft_logits_TV) > -torch.inf),
    )


def replay_pair(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    *,
    sampling: Sampling,
) -> Replay:
    """The same of two models that read one answer; ids that only one of them has are left out."""
    vocab_size = shared_vocab_size(target, draft)
    own_TV, draft_TV = (answer_logits(model, prompt_ids, answer_ids)[:, :vocab_size] for model in (target, draft))
    context = first_tokens(target, prompt_ids)
    return replay_answer(own_TV, draft_TV, answer_ids, sampling=sampling, prompt_ids=context)


def rejection(target_logp_TV: Tensor, draft_logp_TV: Tensor, answer_T: Tensor) -> tuple[Tensor, Tensor]:
    """accept_T and alpha_T = sum_x min(p, q)(x) where a draft token is kept with chance min(1, p / q)."""
    accept_T = rejection_accepts(value_at(answer_T, target_logp_TV), value_at(answer_T, draft_logp_TV))
    return accept_T, torch.minimum(target_logp_TV, draft_logp_TV).exp().sum(dim=-1)


def rejection_accepts(target_logp_T: Tensor, draft_logp_T: Tensor) -> Tensor:
    """accept_T = min(1, q / p)(y_t); 0 where the draft never says the token, which p may miss too by rounding.

    Args:
        target_logp_T: log p(y_t); of a token that was drawn and that rounding puts outside of a filter -inf.
        draft_logp_T: log q(y_t).
    """
    accept_T = (draft_logp_T - target_logp_T).clamp(max=0).exp()
    return torch.where(draft_logp_T.isneginf(), 0.0, accept_T)


def exact_greedy_draft(target_logp_TV: Tensor, draft_logp_TV: Tensor, answer_T: Tensor) -> tuple[Tensor, Tensor]:
    """accept_T and alpha_T = p(argmax q) where the draft's argmax is kept if it is the target's token.

    At temperature 0 the text is the target's, even where rounding makes this pass disagree with it.
    """
    proposed_T = draft_logp_TV.argmax(dim=-1)
    return proposed_T == answer_T, value_at(proposed_T, target_logp_TV).exp()


def exact_sampled_draft(target_logp_TV: Tensor, draft_logp_TV: Tensor, answer_T: Tensor) -> tuple[Tensor, Tensor]:
    """accept_T and alpha_T = sum_x p(x) q(x) where a sample of the draft is kept if it is the target's token."""
    return value_at(answer_T, draft_logp_TV).exp(), (target_logp_TV + draft_logp_TV).exp().sum(dim=-1)


ACCEPTS = {REJECTION: rejection, EXACT_GREEDY_DRAFT: exact_greedy_draft, EXACT_SAMPLED_DRAFT: exact_sampled_draft}


def replay_counts(accept_T: Array, *, lookahead: int) -> Counts:
    """Exact expected counts of the rounds that emit one answer; whole numbers where every chance is 0 or 1."""
    tail_TK = acceptance_tails(accept_T, lookahead)
    return count_visits(round_starts(tail_TK), tail_TK, remaining_after(len(tail_TK)))


def binned_counts(accept_T: Array, bin_T: NDArray[np.int64], *, lookahead: int) -> dict[int, Counts]:
    """The same counts, parted by the bin of the position in which a round starts; pooled they are the whole."""
    tail_TK = acceptance_tails(accept_T, lookahead)
    visits_T, remaining_T = round_starts(tail_TK), remaining_after(len(tail_TK))
    return {
        int(number): count_visits(visits_T * (bin_T == number), tail_TK, remaining_T) for number in np.unique(bin_T)
    }


def acceptance_tails(accept_T: Array, lookahead: int) -> Array:
    """[T, K]: chance that a round starting at t accepts at least k tokens, never the last of the text."""
    num_tokens = len(accept_T)
    proposable_T = np.append(accept_T[:-1], 0.0)
    padded = np.concatenate([proposable_T, np.zeros(lookahead)])
    window_TK = np.lib.stride_tricks.sliding_window_view(padded, lookahead)[:num_tokens]
    return window_TK.cumprod(axis=1, dtype=np.float64)


def round_starts(tail_TK: Array) -> Array:
    """[T]: chance that some round starts at t, by recursion from the first one.

    The forward form of N(s) = 1 + sum_a P(A = a at s) N(s + a + 1): it gives the number of rounds, their sum, and
    where they are.
    """
    num_tokens = len(tail_TK)
    exactly_TA = -np.diff(tail_TK, axis=1, prepend=1.0, append=0.0)
    visits_T = np.zeros(num_tokens)
    visits_T[0] = 1.0
    for start in range(num_tokens):
        reached = visits_T[start + 1 : start + 1 + exactly_TA.shape[1]]
        reached += visits_T[start] * exactly_TA[start, : len(reached)]
    return visits_T


def value_at(ids_T: Tensor, values_TV: Tensor) -> Tensor:
    """values_T: of one vocabulary entry per token."""
    return values_TV.gather(-1, ids_T[:, None])[:, 0]


def as_array(values_T: Tensor) -> Array:
    """A tensor of numbers or booleans as float64 on the host."""
    return values_T.double().cpu().numpy()


POSITION_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # tokens of the answer before this one
ENTROPY_EDGES_NATS = (0.1, 0.5, 1.0, 2.0, 4.0)
NO_TASK, NO_CATEGORY = "without a task", "without a category"


@dataclass(frozen=True)
class AnswerScore:
    """What a draft does along one answer of the target, or along the tokens of one bin of it.

    Attributes:
        prompt: Which prompt it answers; a conversation of several turns is one prompt.
        matches: 1 where draft and target have one argmax, else 0; one for each token.
        alpha_sum: Sum over the tokens of the chance that a proposal is kept.
        accept_sum: Sum over them of the chance that the target's own token comes from the draft.
        num_changed: At temperature 0, those the teacher-forced target would not choose again.
        num_covered: Those that are output ids of the draft: all of them, unless it has a small head.
        counts: Expected counts of the rounds that start at these tokens, by lookahead.
    """

    prompt: int
    matches: Array
    alpha_sum: float
    accept_sum: float
    num_changed: int
    num_covered: int
    counts: Mapping[int, Counts]

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer, or of the bin."""
        return len(self.matches)


@dataclass(frozen=True)
class DraftScore:
    """What a draft does along all answers at one temperature, under one rule.

    Attributes:
        draft: Its name.
        temperature: Of the answers.
        rule: How a proposal is kept.
        answers: What it does along each.
        has_small_head: Whether its output ids are a part of the vocabulary.
    """

    draft: str
    temperature: float
    rule: str
    answers: Sequence[AnswerScore]
    has_small_head: bool = False

    @property
    def lookaheads(self) -> list[int]:
        """Those that were replayed, ascending."""
        return sorted(self.answers[0].counts)

    def per_prompt(self, value: Callable[[AnswerScore], float]) -> list[float]:
        """Sums of a value over the answers of each prompt."""
        sums: dict[int, float] = {}
        for answer in self.answers:
            sums[answer.prompt] = sums.get(answer.prompt, 0) + value(answer)
        return list(sums.values())

    def alpha_columns(self) -> tuple[list[float], list[float]]:
        """Per prompt: sum of the chances, and tokens."""
        return self.per_prompt(lambda answer: answer.alpha_sum), self.per_prompt(lambda answer: answer.num_tokens)

    def accept_columns(self) -> tuple[list[float], list[float]]:
        """Per prompt: sum of the chances that the target's own tokens come from the draft, and tokens."""
        return self.per_prompt(lambda answer: answer.accept_sum), self.per_prompt(lambda answer: answer.num_tokens)

    def coverage_columns(self) -> tuple[list[float], list[float]]:
        """Per prompt: tokens that are output ids of the draft, and tokens."""
        return self.per_prompt(lambda answer: answer.num_covered), self.per_prompt(lambda answer: answer.num_tokens)

    def match_columns(self) -> tuple[list[float], list[float]]:
        """Per prompt: tokens at which draft and target have one argmax, and tokens."""
        return self.per_prompt(lambda answer: answer.matches.sum()), self.per_prompt(lambda answer: answer.num_tokens)

    def tau_columns(self, lookahead: int) -> tuple[list[float], list[float]]:
        """Per prompt: tokens emitted, and rounds."""
        return (
            self.count_column(lookahead, lambda counts: counts.emitted_tokens),
            self.count_column(lookahead, lambda counts: counts.rounds),
        )

    def count_column(self, lookahead: int, count: Callable[[Counts], float]) -> list[float]:
        """Per prompt: one of the counts at a lookahead."""
        return self.per_prompt(lambda answer: count(answer.counts[lookahead]))

    def pooled(self, lookahead: int) -> Counts:
        return pool([answer.counts[lookahead] for answer in self.answers])


@dataclass(frozen=True)
class ReplayedAnswer:
    """One answer as a draft was replayed along it.

    Attributes:
        prompt: Which prompt it answers; a conversation of several turns is one prompt.
        category: The prompt's, if it has one.
        replay: What the draft would do.
        task: The prompt's, if it has one.
    """

    prompt: int
    category: str | None
    replay: Replay
    task: str | None = None


Parting = tuple[list[str], list[NDArray[np.int64]]]  # labels in order; of each answer the label's index of every token


def part_tokens(answers: Sequence[ReplayedAnswer]) -> dict[str, Parting]:
    """Every way in which tokens of these answers are parted; a way may turn out to fill one bin alone.

    Tasks and categories are in alphabetical order, answers without one come last.
    """
    replays = [answer.replay for answer in answers]
    parted: dict[str, Parting] = {}
    for by, without in (("task", NO_TASK), ("category", NO_CATEGORY)):
        names = [getattr(answer, by) for answer in answers]
        labels = [*sorted({name for name in names if name is not None}), without]
        indices = [len(labels) - 1 if name is None else labels.index(name) for name in names]
        pairs = zip(replays, indices, strict=True)
        parted[by] = labels, [np.full(replay.num_tokens, index) for replay, index in pairs]
    parted["output_position"] = token_labels(POSITION_EDGES), [position_bins(each.num_tokens) for each in replays]
    entropy_bins = [np.digitize(each.target_entropy, ENTROPY_EDGES_NATS) for each in replays]
    parted["entropy"] = nats_labels(ENTROPY_EDGES_NATS), entropy_bins
    return parted


def position_bins(num_tokens: int) -> NDArray[np.int64]:
    """bin_T of the tokens of an answer; the first token has position 0."""
    return np.digitize(np.arange(num_tokens), POSITION_EDGES)


def token_labels(edges: Sequence[int]) -> list[str]:
    """Bins of whole numbers: 0-15, 16-31, ... and from the last edge on."""
    inner = [f"{low}-{high - 1}" for low, high in zip((0, *edges), edges, strict=False)]
    return [*inner, f"{edges[-1]} and more"]


def nats_labels(edges: Sequence[float]) -> list[str]:
    """Bins of numbers: below the first edge, between two, and from the last on; an edge belongs to the bin above it."""
    inner = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    return [f"below {edges[0]:g}", *inner, f"{edges[-1]:g} and more"]


PartedScores = Mapping[str, Mapping[str, DraftScore]]  # by what tokens are parted by, by bin


@dataclass(frozen=True)
class ReplayedDraft:
    """A draft along every answer of the target at one temperature; see DraftScore."""

    draft: str
    temperature: float
    answers: Sequence[ReplayedAnswer]
    has_small_head: bool = False

    def scores(self, lookaheads: Sequence[int]) -> list[DraftScore]:
        """Sums and counts of whole answers, one score for each rule; the one a scorecard leads with is the first."""
        return [
            DraftScore(
                self.draft,
                self.temperature,
                rule,
                [score_answer(answer, rule=rule, lookaheads=lookaheads) for answer in self.answers],
                self.has_small_head,
            )
            for rule in rule_names(self.temperature)
        ]

    def parted_scores(self, lookaheads: Sequence[int]) -> PartedScores:
        """The same under the leading rule, of every bin that holds a token, in the order of the labels."""
        rule, parted = rule_name(self.temperature), {}
        for by, (labels, bins) in part_tokens(self.answers).items():
            rows: dict[int, list[AnswerScore]] = {}
            for answer, bin_T in zip(self.answers, bins, strict=True):
                for number, part in score_parts(answer, bin_T, rule=rule, lookaheads=lookaheads).items():
                    rows.setdefault(number, []).append(part)
            parted[by] = {
                labels[number]: DraftScore(self.draft, self.temperature, rule, rows[number], self.has_small_head)
                for number in sorted(rows)
            }
        return parted


def score_answer(answer: ReplayedAnswer, *, rule: str, lookaheads: Sequence[int]) -> AnswerScore:
    """Sums and counts of one answer under one rule."""
    one_bin_T = np.zeros(answer.replay.num_tokens, dtype=np.int64)
    return score_parts(answer, one_bin_T, rule=rule, lookaheads=lookaheads)[0]


def score_parts(
    answer: ReplayedAnswer, bin_T: NDArray[np.int64], *, rule: str, lookaheads: Sequence[int]
) -> dict[int, AnswerScore]:
    """Sums over the tokens of each bin of one answer, and counts of the rounds that start at them."""
    replay, accepts = answer.replay, answer.replay.rules[rule]
    counts = {lookahead: binned_counts(accepts.accept, bin_T, lookahead=lookahead) for lookahead in lookaheads}
    return {
        int(number): AnswerScore(
            prompt=answer.prompt,
            matches=replay.match[bin_T == number],
            alpha_sum=float(accepts.alpha[bin_T == number].sum()),
            accept_sum=float(accepts.accept[bin_T == number].sum()),
            num_changed=int(np.isneginf(replay.target_logp[bin_T == number]).sum()),
            num_covered=int(replay.covered[bin_T == number].sum()),
            counts={lookahead: by_bin[int(number)] for lookahead, by_bin in counts.items()},
        )
        for number in np.unique(bin_T)
    }

"""Statistical checks that speculative decoding of a pair is lossless: the draft changes only the speed.

    greedy text      In float32 the tokens equal plain decoding of the target. In half precision, where one token and
                     several at once round differently, each token must only be the argmax, or nearly tie with it, if
                     the target reads the whole sequence again without a cache. Near ties may be no more frequent and
                     no larger than honest rounding explains (below).
    own draft        The target accepts all its own proposals.
    distribution     Sampled sequences follow the target. Given the tokens before it, a token x drawn from p has a
                     quantile u = P(tokens ordered before x) + v p(x), v uniform, that is uniform in [0, 1] and
                     independent from token to token (Rosenblatt 1952, "Remarks on a multivariate transformation", with
                     the usual jitter for discrete p). Two orders are tested by Kolmogorov-Smirnov: by q - p, which
                     shows a bias towards the draft, and by id, which shows faulty random numbers, since tokens are
                     drawn in that order. A third test detects inflated acceptance probabilities (below). The p-value
                     is three times the smallest (Bonferroni).

Inflated acceptance. A decoder that accepts too readily overproduces tokens that the draft overrates, and is faster for
it. With acceptance probabilities multiplied by 1 + e, a token is drawn from p'_e instead of p, which follows from p, q
and the method. The best test of p against p'_f, for one small f, adds up h(x) = p'_f(x) / p(x) - 1 over the tokens
that were proposed or replace a proposed one. Under p each has mean 0 given those before, and the sum is nearly normal
with the sum of their variances (Brown 1971, "Martingale central limit theorems"). No h is much above f, so a sum that
is too large is rarer than under the normal law.

One token and several at once are computed by different kernels, which round differently, so when two tokens nearly tie
an honest decoder may generate either. How often, and how near, is measured, not assumed: the target reads each
sequence three times, at once without a cache, and with the cache of transformers one token and k + 1 tokens per step.
None of this runs the code under test.

    number    If the argmax of a stepwise reading is not that of the reading at once, an honest decoder chose the other
              token. The sequence may do so equally often, within chance: given the tokens before, a sequence's own
              reading and another are exchangeable, so a choice made by only one of them is equally likely to be made
              by either (McNemar 1947, "Note on the sampling error of the difference between correlated proportions").
              A choice counts once per sequence, because a sequence that loops meets it repeatedly.
    size      A token may lie below the argmax by no more than TIE_STEPS roundings, and rarely by more than the gap of
              the two best tokens differs between readings. The differences of the sequence's own reading are
              exchangeable with those of the others, so the m largest of all belong to it with a probability of at
              most (own readings / all readings)^m, however heavy the tails of rounding are.

Shape suffixes used in this file:
    N = judged tokens
    T = tokens of a sequence
    V = vocabulary
    O = orders
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import binom, binomtest, kstest, norm
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from eval.decoding.kv_cache import CACHE_ARGUMENT, Opener, open_sequencer
from eval.decoding.sampling import (
    EXACT_GREEDY_DRAFT,
    EXACT_SAMPLED_DRAFT,
    LOSSLESS,
    RULES,
    Decoded,
    Limits,
    Sampling,
    Seeds,
    Speculation,
    VerificationStep,
    at,
    distribution,
    row_seed,
    seen_along,
)
from eval.decoding.speculative import GREEDY, first_tokens, plain_decode, speculative_decode
from eval.models import shared_vocab_size
from eval.replay import response_logits

MIN_P = 1e-3  # a sound pair fails a statistical check once in a thousand times
TIE_STEPS = 4  # roundings of the largest logit within which two count as a near tie, whatever is measured

Choice = tuple[int, int]  # the argmax of the reading at once, and the token taken instead
Short = tuple[float, float, Choice]  # of a token below the argmax: its distance in logits, and the largest allowed


@dataclass(frozen=True)
class TextTies:
    """Tokens that a sequence and other readings of it chose instead of the argmax.

    Attributes:
        own: Choices of the sequence.
        others: Choices of each stepwise reading; none if it was only read at once.
        noise: Largest difference between readings of the gap of the two best tokens, in logits.
    """

    tokens: int
    short: tuple[Short, ...]
    own: frozenset[Choice]
    others: tuple[frozenset[Choice], ...] = ()
    noise: float = 0.0


def read_all(
    target: PreTrainedModel, texts: Sequence[tuple[Sequence[int], Sequence[int]]], widths: Sequence[int]
) -> list[TextTies]:
    """Read sequences (prompt, tokens); stepwise only if some token is not the argmax."""
    ties = [read_ties(target, prompt, token_ids) for prompt, token_ids in texts]
    if not any(text.short for text in ties):
        return ties
    return [read_ties(target, prompt, token_ids, widths) for prompt, token_ids in texts]


def read_ties(
    target: PreTrainedModel, prompt: Sequence[int], token_ids: Sequence[int], widths: Sequence[int] = ()
) -> TextTies:
    """Read a sequence at once, and again by each of `widths` tokens per step."""
    whole_TV = response_logits(target, prompt, token_ids)
    own_T = torch.tensor(token_ids, device=whole_TV.device)
    short_T, tolerance_T = shortfalls(whole_TV, own_T, target.dtype)
    others, noise = [], 0.0
    for width in widths:
        other_TV = stepwise_logits(target, prompt, token_ids, width=width)
        others.append(choices(whole_TV, other_TV.argmax(dim=-1)))
        noise = max(noise, reading_noise(whole_TV, other_TV))
    pairs = zip(whole_TV.argmax(dim=-1).tolist(), token_ids, strict=True)
    short = tuple(each for each in zip(short_T.tolist(), tolerance_T.tolist(), pairs, strict=True) if each[0] > 0)
    return TextTies(len(token_ids), short, choices(whole_TV, own_T), tuple(others), noise)


def shortfalls(logits_TV: Tensor, taken_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the distance of each taken token's logit to the largest, and TIE_STEPS roundings of that, both [T]."""
    tolerance_T = TIE_STEPS * torch.finfo(dtype).eps * logits_TV.abs().amax(dim=-1)
    return logits_TV.amax(dim=-1) - at(logits_TV, taken_T), tolerance_T


def choices(logits_TV: Tensor, taken_T: Tensor) -> frozenset[Choice]:
    """Return the tokens that were taken instead of an argmax with a larger logit."""
    lower_T = at(logits_TV, taken_T) < logits_TV.amax(dim=-1)
    best_T = logits_TV.argmax(dim=-1)
    return frozenset(zip(best_T[lower_T].tolist(), taken_T[lower_T].tolist(), strict=True))


def reading_noise(whole_TV: Tensor, other_TV: Tensor) -> float:
    """Return the largest difference between two readings in the gap of the first one's two best tokens."""
    return float((best_gap(whole_TV, whole_TV) - best_gap(whole_TV, other_TV)).abs().max())


def best_gap(ranking_TV: Tensor, logits_TV: Tensor) -> Tensor:
    """Return the gap [T] in one reading between the two tokens that another ranks first and second."""
    best_T2 = ranking_TV.topk(2, dim=-1).indices
    return at(logits_TV, best_T2[:, 0]) - at(logits_TV, best_T2[:, 1])


@torch.inference_mode()
def stepwise_logits(
    model: PreTrainedModel, prompt_ids: Sequence[int], response_ids: Sequence[int], *, width: int
) -> Tensor:
    """Compute `response_logits` by `width` tokens per step with the cache of transformers."""
    if model.config.is_encoder_decoder:
        encoded = model.get_encoder()(input_ids=torch.tensor([list(prompt_ids)], device=model.device), return_dict=True)
        context, name = [model.config.decoder_start_token_id], "decoder_input_ids"
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        how = {"encoder_outputs": encoded, CACHE_ARGUMENT: cache}
    else:
        context, name = list(prompt_ids), "input_ids"
        how = {CACHE_ARGUMENT: DynamicCache(config=model.config)}
    ids_1T = torch.tensor([[*context, *response_ids[:-1]]], device=model.device)
    before = len(context) - 1
    pieces = [ids_1T[:, :before]] if before else []
    pieces += ids_1T[:, before:].split(width, dim=1)
    logits = [model(**{name: piece}, **how, use_cache=True).logits[0].float() for piece in pieces]
    return torch.cat(logits[1:] if before else logits)


@dataclass(frozen=True)
class Judgement:
    """Near ties of sequences compared with those of honest readings.

    Attributes:
        ties: Tokens below the argmax by at most TIE_STEPS roundings.
        too_far: Tokens below it by more.
        largest: Largest distance to the argmax, in logits.
        noise: Largest difference between readings, in logits.
        larger: Choices of the sequences at a larger distance.
        larger_p: Probability of `larger` or more.
        own: Choices made only by the sequences.
        other: Choices made only by the honest reading.
        own_p: Probability of `own` or more; of the reading that explains most.
    """

    tokens: int
    ties: int
    too_far: int
    largest: float
    noise: float
    larger: int
    larger_p: float
    own: int
    other: int
    own_p: float

    @property
    def is_honest(self) -> bool:
        return self.too_far == 0 and min(self.own_p, self.larger_p) >= MIN_P

    @property
    def summary(self) -> str:
        return (
            f"tokens {self.tokens}, near ties {self.ties} ({self.ties / self.tokens:.2%}), beyond a near tie "
            f"{self.too_far}; argmax only in the text {self.own}, only in the reference {self.other}, p = "
            f"{self.own_p:.3g}; largest {self.largest:.2g} logits, {self.larger} above the {self.noise:.2g} of the "
            f"references, p = {self.larger_p:.3g}; required: {MIN_P:g}"
        )


def judge_ties(texts: Sequence[TextTies]) -> Judgement:
    noise, readings = max(text.noise for text in texts), len(texts[0].others)
    short = [each for text in texts for each in text.short]
    too_far = sum(logits > tolerance for logits, tolerance, _ in short)
    larger = sum(len({choice for logits, _, choice in text.short if logits > noise}) for text in texts)
    compared = [compare_choices(texts, reading) for reading in range(readings)]
    own, other, own_p = max(compared, key=lambda pair: pair[2], default=(0, 0, 1.0))
    largest = max((logits for logits, *_ in short), default=0.0)
    return Judgement(
        tokens=sum(text.tokens for text in texts),
        ties=len(short) - too_far,
        too_far=too_far,
        largest=largest,
        noise=noise,
        larger=larger,
        larger_p=larger_p(larger, own=1, measured=readings),
        own=own,
        other=other,
        own_p=own_p,
    )


def larger_p(count: int, *, own: int, measured: int) -> float:
    """Return a bound of the probability that the `count` largest differences are all of `own` of the readings."""
    return (own / (own + measured)) ** count


def compare_choices(texts: Sequence[TextTies], reading: int) -> tuple[int, int, float]:
    """Return the choices made only by the sequences, only by one of their readings, and the p-value of the former."""
    own = sum(len(text.own - text.others[reading]) for text in texts)
    other = sum(len(text.others[reading] - text.own) for text in texts)
    return own, other, excess_p(own, other)


def excess_p(own: int, other: int) -> float:
    """Return the probability of `own` or more if either kind is equally likely; 1 if there are none."""
    return float(binomtest(own, own + other, 0.5, alternative="greater").pvalue) if own + other else 1.0


@dataclass(frozen=True)
class Parting:
    """The position at which two sequences of one prompt first differ.

    Attributes:
        short: Distance of either sequence's token to the argmax, in logits.
        tolerance: Logits allowed by TIE_STEPS.
        noise: Difference between two readings of the first sequence.
    """

    short: tuple[float, float]
    tolerance: float
    noise: float

    @property
    def is_tie(self) -> bool:
        return max(self.short) <= self.tolerance

    def leaves(self, side: int) -> bool:
        """Return True if only this sequence's token is not the argmax."""
        return self.short[side] > 0 == self.short[1 - side]


def find_parting(
    target: PreTrainedModel, prompt: Sequence[int], first_ids: Sequence[int], other_ids: Sequence[int], *, width: int
) -> Parting | None:
    """Find where two sequences differ; None if one is a prefix of the other.

    Args:
        target: Reads the first sequence at once, and by `width` tokens per step.
    """
    index = next(
        (index for index, pair in enumerate(zip(first_ids, other_ids, strict=False)) if pair[0] != pair[1]), None
    )
    if index is None:
        return None
    whole_TV = response_logits(target, prompt, first_ids)
    both_2V = whole_TV[[index, index]]
    short_2, tolerance_2 = shortfalls(
        both_2V, torch.tensor([first_ids[index], other_ids[index]], device=both_2V.device), target.dtype
    )
    noise = reading_noise(whole_TV, stepwise_logits(target, prompt, first_ids, width=width))
    first, second = short_2.tolist()
    return Parting((first, second), float(tolerance_2[0]), noise)


Models = tuple[PreTrainedModel, PreTrainedModel]  # target and draft
Prompts = Sequence[Sequence[int]]
Inflated = Callable[[Tensor, Tensor, float], Tensor]

MIN_OWN_ACCEPTANCE = 0.98  # own proposals accepted by a target in half precision; as in vLLM's tests of draft models
FAULT = 0.05  # f: the inflation that h is made for
ROUNDING = 1e-4  # of h: a draft that is the target differs from it by nothing else


@dataclass(frozen=True)
class Verification:
    """Settings of the checks.

    Attributes:
        speculation: Every acceptance method is checked, whatever its `rule`.
        sampling: Of the distribution checks, with a temperature above 0.
    """

    limits: Limits = Limits(64)  # noqa: RUF009  # never changes
    speculation: Speculation = Speculation()  # noqa: RUF009
    sampling: Sampling = Sampling(1.0)  # noqa: RUF009
    samples: int = 4
    seed: int = 17
    opener: Opener = open_sequencer


@dataclass(frozen=True)
class LosslessFinding:
    """Result of one check."""

    name: str
    holds: bool
    detail: str


def check_lossless(models: Models, prompts: Prompts, wanted: Verification) -> Iterator[LosslessFinding]:
    """Run every check on a target and a draft with the same tokenizer, yielding findings as they come."""
    yield check_greedy_text(models, prompts, wanted)
    yield check_own_draft(models[0], prompts, wanted)
    for rule in LOSSLESS:
        yield check_distribution(models, prompts, wanted, rule)


def check_greedy_text(models: Models, prompts: Prompts, wanted: Verification) -> LosslessFinding:
    """Check that greedy speculative decoding equals plain decoding."""
    target = models[0]
    decoded = decode(models, prompts, wanted)
    plain = plain_decode(target, prompts, limits=wanted.limits, opener=wanted.opener)
    same = sum(text.token_ids == own.token_ids for text, own in zip(decoded, plain, strict=True))
    texts = [(prompt, text.token_ids) for prompt, text in zip(prompts, decoded, strict=True)]
    judged = judge_ties(read_all(target, texts, widths=(1, wanted.speculation.num_speculative_tokens + 1)))
    detail = f"{same} of {len(prompts)} texts equal plain decoding; {accepted_of(decoded)}; {judged.summary}"
    is_equal = same == len(prompts) or target.dtype != torch.float32
    return LosslessFinding("greedy text", is_equal and judged.is_honest, detail)


def check_own_draft(target: PreTrainedModel, prompts: Prompts, wanted: Verification) -> LosslessFinding:
    """Check that the target accepts its own proposals; fails without a proposed token."""
    decoded = decode((target, target), prompts, wanted)
    accepted, proposed = counts(decoded)
    detail = accepted_of(decoded)
    if target.dtype == torch.float32:
        return LosslessFinding("target as its own draft", accepted == proposed > 0, f"{detail}; required: all")
    p_value = own_p_value(proposed - accepted, proposed)
    detail += f"; required: {MIN_OWN_ACCEPTANCE:.0%}, p = {p_value:.3g} >= {MIN_P:g}"
    return LosslessFinding("target as its own draft", proposed > 0 and p_value >= MIN_P, detail)


def check_distribution(models: Models, prompts: Prompts, wanted: Verification, rule: str) -> LosslessFinding:
    """Check that sequences sampled with one acceptance method follow the target's distribution."""
    decoded = decode(models, prompts, wanted, sampling=wanted.sampling, rule=rule)
    rng = np.random.default_rng((wanted.seed, list(RULES).index(rule)))
    quantiles: list[np.ndarray] = []
    evidences: list[tuple[float, float]] = []
    for prompt, text in zip([prompt for prompt in prompts for _ in range(wanted.samples)], decoded, strict=True):
        p_TV, q_TV = read_distributions(models, prompt, text.token_ids, wanted.sampling)
        quantiles.append(quantiles_in_order(p_TV.double(), q_TV.double(), text.token_ids, rng))
        evidences.append(evidence(p_TV, q_TV, text.token_ids, text.steps, rule))

    quantiles_OT = np.concatenate(quantiles, axis=1)
    p_values = [inflation_p_value(evidences), *(float(kstest(each, "uniform").pvalue) for each in quantiles_OT)]
    p_value = min(1.0, len(p_values) * min(p_values))
    num_tokens = quantiles_OT.shape[1]
    detail = f"p = {p_value:.3g} from {num_tokens} tokens, required: {MIN_P:g}; {accepted_of(decoded)}"
    return LosslessFinding(f"distribution, {rule}, T={wanted.sampling.temperature:g}", p_value >= MIN_P, detail)


def decode(
    models: Models, prompts: Prompts, wanted: Verification, *, sampling: Sampling = GREEDY, rule: str = LOSSLESS[0]
) -> list[Decoded]:
    """Decode with a draft: once per prompt at temperature 0, otherwise `samples` times.

    Each method has its own random numbers: the exact methods use only the target's and would generate the same.
    """
    samples = 1 if sampling.is_greedy else wanted.samples
    repeated = [prompt for prompt in prompts for _ in range(samples)]
    return speculative_decode(
        *models,
        repeated,
        limits=wanted.limits,
        speculation=replace(wanted.speculation, rule=rule),
        sampling=sampling,
        seeds=Seeds.of(wanted.seed),
        row_seeds=[row_seed(row, list(RULES).index(rule)) for row in range(len(repeated))],
        opener=wanted.opener,
    )


@torch.inference_mode()
def read_distributions(
    models: Models, prompt: Sequence[int], token_ids: Sequence[int], sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """Return p_TV and q_TV of every token, computed at once without a cache."""
    vocab_size = shared_vocab_size(*models)
    logits_TV, draft_logits_TV = (response_logits(model, prompt, token_ids)[:, :vocab_size] for model in models)
    seen_TV = seen_along(first_tokens(models[0], prompt), token_ids, sampling, logits_TV)
    return distribution(logits_TV, sampling, seen_TV), distribution(draft_logits_TV, sampling, seen_TV)


def quantiles_in_order(p_TV: Tensor, q_TV: Tensor, token_ids: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Return each token's quantile in the target's distribution, by q - p and by id: [O, T], uniform if lossless."""
    own_T1 = torch.tensor(token_ids, device=p_TV.device)[:, None]
    ids_V = torch.arange(p_TV.shape[1], device=p_TV.device).double()
    quantiles = []
    for order_TV in (p_TV - q_TV, ids_V.expand_as(p_TV)):
        own_order_T1 = order_TV.gather(1, own_T1)
        before_T = (p_TV * (order_TV < own_order_T1)).sum(dim=-1)
        level_T = (p_TV * (order_TV == own_order_T1)).sum(dim=-1)  # the token and any with the same order
        quantiles.append(before_T.cpu().numpy() + rng.random(len(token_ids)) * level_T.cpu().numpy())
    return np.stack(quantiles)


def own_p_value(num_rejected: int, num_proposed: int) -> float:
    """Return the probability of `num_rejected` or more if MIN_OWN_ACCEPTANCE of its own proposals are accepted."""
    return float(binom.sf(num_rejected - 1, num_proposed, 1 - MIN_OWN_ACCEPTANCE))


def counts(decoded: Sequence[Decoded]) -> tuple[int, int]:
    steps = [step for text in decoded for step in text.steps]
    return sum(step.accepted for step in steps), sum(step.proposed for step in steps)


def accepted_of(decoded: Sequence[Decoded]) -> str:
    return "accepted {} of {} proposed tokens".format(*counts(decoded))


def inflation_p_value(evidences: Sequence[tuple[float, float]]) -> float:
    """Return the probability of this sum of h or a larger one for a sound decoder; 1 if no proposal is informative."""
    total, variance = np.sum(evidences, axis=0)
    return float(norm.sf(total / variance**0.5)) if variance > 0 else 1.0


def evidence(
    p_TV: Tensor, q_TV: Tensor, token_ids: Sequence[int], steps: Sequence[VerificationStep], rule: str
) -> tuple[float, float]:
    """Return the sum of h over the judged tokens of one sequence, and its variance under p."""
    judged_N = torch.tensor(judged_positions(steps), dtype=torch.long, device=p_TV.device)
    p_NV, q_NV = p_TV[judged_N].float(), q_TV[judged_N].float()
    score_NV = score(p_NV, inflated_by_rule(rule)(p_NV, q_NV, FAULT))
    own_N1 = torch.tensor(token_ids, device=p_TV.device)[judged_N, None]
    means_N = (p_NV * score_NV).sum(dim=-1).double()
    squares_N = (p_NV * score_NV.square()).sum(dim=-1).double()
    return float(score_NV.gather(1, own_N1).double().sum()), float((squares_N - means_N.square()).sum())


def score(p_NV: Tensor, inflated_NV: Tensor) -> Tensor:
    """Return h of every token: 0 if it is only rounding, and with mean 0 under p."""
    score_NV = torch.where(p_NV > 0, inflated_NV / p_NV - 1, 0)
    score_NV = torch.where(score_NV.abs() > ROUNDING, score_NV, 0)
    return score_NV - (p_NV * score_NV).sum(dim=-1, keepdim=True)


def judged_positions(steps: Sequence[VerificationStep]) -> list[int]:
    """Return positions of accepted tokens and of replacements; the bonus token is the target's own."""
    return [
        position for step in steps for position in range(step.start, step.start + min(step.accepted + 1, step.proposed))
    ]


def inflated_by_rule(rule: str) -> Inflated:
    """Return the function that computes the token distribution under inflated acceptance probabilities."""
    if rule == EXACT_GREEDY_DRAFT:
        return lambda p_TV, q_TV, by: inflated_exact(p_TV, one_hot_argmax(q_TV), by)
    return inflated_exact if rule == EXACT_SAMPLED_DRAFT else inflated_rejection


def inflated_rejection(p_TV: Tensor, q_TV: Tensor, by: float) -> Tensor:
    """Return the distribution if accepted with probability min(1, (1 + by) p / q) and replaced correctly."""
    accepted_TV = torch.minimum(q_TV, (1 + by) * p_TV)
    rest_TV = (p_TV - q_TV).clamp(min=0)
    total_T1 = rest_TV.sum(dim=-1, keepdim=True)
    rest_TV = torch.where(total_T1 > 0, rest_TV / total_T1, p_TV)
    return accepted_TV + (1 - accepted_TV.sum(dim=-1, keepdim=True)).clamp(min=0) * rest_TV


def inflated_exact(p_TV: Tensor, q_TV: Tensor, by: float) -> Tensor:
    """Return the distribution if matches are accepted, and mismatches so that acceptance has probability (1 + by) p."""
    wrong_TV = torch.where(p_TV < 1, by * p_TV / (1 - p_TV), 0).clamp(max=1)
    rejected_TV = q_TV * (1 - wrong_TV)
    replaced_TV = p_TV * (rejected_TV.sum(dim=-1, keepdim=True) - rejected_TV)
    return q_TV * (p_TV + (1 - p_TV) * wrong_TV) + replaced_TV


def one_hot_argmax(q_TV: Tensor) -> Tensor:
    return torch.zeros_like(q_TV).scatter(-1, q_TV.argmax(dim=-1, keepdim=True), 1.0)

"""Proof that a pair decodes losslessly on this machine: that the draft changes how fast a text comes, and nothing else.

Three kinds of check, each on texts decoded for the purpose:

    greedy text      With the draft, the target writes the text it writes alone: the same tokens in float32. Each is its
                     argmax, or a near tie with it, when it reads the whole text again without a cache; that alone is
                     asked in half precision, where one token and several at once round differently. Near ties may be
                     no more and no larger than honest rounding explains (eval/checks/near_ties.py).
    own draft        The target proposing to itself keeps everything.
    distribution     Sampled texts are the target's. Given the tokens before it, a token x drawn from p has a quantile
                     u = P(tokens ordered before x) + v p(x), v uniform, that is uniform in [0, 1] and independent from
                     token to token (Rosenblatt 1952, "Remarks on a multivariate transformation", with the usual jitter
                     for discrete p). Two orders are tested: by q - p, what the draft overstates first, where a fault in
                     favour of the draft shows, and by id, where one of random numbers does, since tokens are drawn in
                     that order. A Kolmogorov-Smirnov test of each decides, and a test made for accept chances that are
                     too high (eval/checks/inflation.py); p is three times the smallest (Bonferroni).

Shape suffixes used in this file:
    T = tokens of a text, V = vocabulary, O = orders
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.stats import binom, kstest
from torch import Tensor
from transformers import PreTrainedModel

from eval.acceptance.replay import answer_logits
from eval.checks.inflation import POWER, SIZES, Evidence, evidence, pooled
from eval.checks.near_ties import Judgement, judge_ties, read_all
from eval.decoding.batch import first_tokens
from eval.decoding.rules import LOSSLESS, RULES
from eval.decoding.sampling import Sampling, distribution, seen_along
from eval.decoding.speculative import GREEDY, plain_decode, speculative_decode
from eval.decoding.texts import Decoded, Limits, Seeds, Speculation, row_seed
from eval.models.loading import shared_vocab_size
from eval.proposing.policy import ProposalPolicy, new_record
from eval.rounds.round_trace import Run
from eval.steps.sequencer import Opener, open_sequencer

LEAST_P = 1e-3  # a sound pair fails a check of chances once in a thousand times
LEAST_OWN = 0.98  # of its own proposals a target in half precision keeps; vLLM's tests of draft models ask the same
NUM_TESTS = 3  # of a distribution


@dataclass(frozen=True)
class Verification:
    """What is decoded.

    Attributes:
        max_new_tokens: Length of a text at most.
        stop_ids: Tokens that end it.
        speculation: How the draft is used, but for the rule.
        sampling: Of the distribution checks; its temperature is above 0. Greedy texts are checked without any.
        samples: Texts drawn for each prompt and rule.
        seed: Of every random number.
        opener: How the models are run.
        lookup_policies: By temperature, when the text itself proposes in the draft's place; empty for never.
    """

    max_new_tokens: int = 64
    stop_ids: AbstractSet[int] = frozenset()
    speculation: Speculation = Speculation()  # noqa: RUF009  # never changes
    sampling: Sampling = Sampling(1.0)  # noqa: RUF009  # never changes
    samples: int = 4
    seed: int = 17
    opener: Opener = open_sequencer
    lookup_policies: Mapping[float, ProposalPolicy] = field(default_factory=dict)

    @property
    def limits(self) -> Limits:
        return Limits(self.max_new_tokens, self.stop_ids)

    @property
    def seeds(self) -> Seeds:
        """Of the three streams of random numbers."""
        return Seeds.of(self.seed)


@dataclass(frozen=True)
class Finding:
    """What one check found, in words, whether the law holds, and what was decoded with a draft to find it."""

    name: str
    holds: bool
    detail: str
    run: Run


def verify_pair(
    target: PreTrainedModel, draft: PreTrainedModel, prompts: Sequence[Sequence[int]], wanted: Verification
) -> Iterator[Finding]:
    """Run every check on a pair, telling each as it is found.

    Args:
        target: Decides every token; float32, bfloat16 or float16.
        draft: Proposes tokens; shares the target's tokenizer.
        prompts: Token ids, each at least one.
        wanted: What to decode.
    """
    yield check_greedy_text(target, draft, prompts, wanted)
    yield check_own_draft(target, prompts, wanted)
    for rule in LOSSLESS:
        yield check_distribution(target, draft, prompts, wanted, rule)


def check_greedy_text(
    target: PreTrainedModel, draft: PreTrainedModel, prompts: Sequence[Sequence[int]], wanted: Verification
) -> Finding:
    """Whether the draft leaves the greedy text as it is."""
    run = decode_run("greedy text", (target, draft), prompts, wanted)
    decoded, plain = run.decoded, plain_decode(target, prompts, limits=wanted.limits, opener=wanted.opener)
    same = sum(text.token_ids == own.token_ids for text, own in zip(decoded, plain, strict=True))
    texts = [(prompt, text.token_ids) for prompt, text in zip(prompts, decoded, strict=True)]
    judged = judge_ties(read_all(target, texts, widths=(1, wanted.speculation.most + 1)))
    detail = f"{same} of {len(prompts)} texts are those of plain decoding; {kept_of(decoded)}; {ties_words(judged)}"
    is_honest = judged.too_far == 0 and judged.p_value >= LEAST_P
    return Finding(run.label, is_honest and (same == len(prompts) or target.dtype != torch.float32), detail, run)


def ties_words(judged: Judgement) -> str:
    """How many near ties there are, and how many honest rounding has."""
    told = (
        f"of {judged.tokens} tokens {judged.ties} ({judged.ties / judged.tokens:.2%}) are near ties of the argmax and "
        f"{judged.too_far} are neither"
    )
    if not judged.ties + judged.too_far:
        return told
    return (
        f"{told}; they lie up to {judged.largest:.2g} logits below it, {judged.allowed:.2g} are allowed; {judged.own} "
        f"choices are the text's alone, {judged.other} an honest reading's, p = {judged.p_value:.3g}, asked: "
        f"{LEAST_P:g}"
    )


def decode_run(
    label: str,
    pair: tuple[PreTrainedModel, PreTrainedModel],
    prompts: Sequence[Sequence[int]],
    wanted: Verification,
    *,
    sampling: Sampling = GREEDY,
    rule: str = LOSSLESS[0],
) -> Run:
    """Texts decoded with a draft: one of each prompt at temperature 0, else as many as are wanted.

    Each rule has random numbers of its own: the exact rules write by the target's alone, and would write the same.
    """
    samples = 1 if sampling.is_greedy else wanted.samples
    prompt_indices = [index for index in range(len(prompts)) for _ in range(samples)]
    speculation, seeds = replace(wanted.speculation, rule=rule), wanted.seeds
    decoded = speculative_decode(
        *pair,
        [prompts[index] for index in prompt_indices],
        limits=wanted.limits,
        speculation=speculation,
        sampling=sampling,
        seeds=seeds,
        row_seeds=[row_seed(row, list(RULES).index(rule)) for row in range(len(prompt_indices))],
        opener=wanted.opener,
        lookup_policy=wanted.lookup_policies.get(sampling.temperature),
    )
    drafter = "target" if pair[0] is pair[1] else "draft"
    return Run(label, prompt_indices, decoded, wanted.max_new_tokens, speculation, sampling, seeds, drafter)


def check_own_draft(target: PreTrainedModel, prompts: Sequence[Sequence[int]], wanted: Verification) -> Finding:
    """Whether the target keeps what it proposes itself, after looking up as well."""
    run = decode_run("target as its own draft", (target, target), prompts, wanted)
    accepted, proposed = counted(run.decoded, drafted_alone=True)
    told = kept_words(accepted, proposed)
    if proposed == 0:
        told += ": nothing is proven of it. Let rounds end later (--least-confidence, --least-chance), or write more"
    if target.dtype == torch.float32:
        return Finding(run.label, accepted == proposed > 0, f"{told}; asked: 100%", run)
    p_value = own_p_value(proposed - accepted, proposed)
    detail = f"{told}, p = {p_value:.3g}; asked: {LEAST_OWN:.0%}, p = {LEAST_P:g}"
    return Finding(run.label, proposed > 0 and p_value >= LEAST_P, detail, run)


def own_p_value(num_rejected: int, num_proposed: int) -> float:
    """How often a target that keeps LEAST_OWN of its own proposals rejects as many of them, or more."""
    return float(binom.sf(num_rejected - 1, num_proposed, 1 - LEAST_OWN))


def check_distribution(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    wanted: Verification,
    rule: str,
) -> Finding:
    """Whether sampled texts are the target's own by one rule."""
    label = f"distribution, {rule}, T={wanted.sampling.temperature:g}"
    run = decode_run(label, (target, draft), prompts, wanted, sampling=wanted.sampling, rule=rule)
    rng = np.random.default_rng((wanted.seed, list(RULES).index(rule)))
    texts = [
        read_text((target, draft), prompts[index], decoded, wanted, rule=rule, rng=rng)
        for index, decoded in zip(run.prompt_indices, run.decoded, strict=True)
    ]
    quantiles_OT, inflation = (
        np.concatenate([text.quantiles_OT for text in texts], axis=1),
        pooled([text.inflation for text in texts]),
    )
    p_value = least_of([inflation.p_value, *(float(kstest(each, "uniform").pvalue) for each in quantiles_OT)])
    detail = (
        f"p = {p_value:.3g} from {quantiles_OT.shape[1]} tokens, asked: {LEAST_P:g}; {power_words(inflation)}; "
        f"{kept_of(run.decoded)}"
    )
    return Finding(label, p_value >= LEAST_P, detail, run)


def least_of(p_values: Sequence[float]) -> float:
    """The p-value of several tests together: the smallest, as often as there are tests."""
    assert len(p_values) == NUM_TESTS
    return min(1.0, NUM_TESTS * min(p_values))


def power_words(inflation: Evidence) -> str:
    """The smallest fault that so many tokens show."""
    size = inflation.least_detectable(LEAST_P / NUM_TESTS)
    if size is None:
        return f"accept chances inflated by {SIZES[-1]:.0%} would pass more often than in {1 - POWER:.0%} of runs"
    return f"finds accept chances inflated by {size:.1%} in {POWER:.0%} of runs"


@dataclass(frozen=True)
class SampledText:
    """What one sampled text says of where it was drawn from.

    Attributes:
        quantiles_OT: Where each token falls in the target's distribution, in each order.
        inflation: Of accept chances.
    """

    quantiles_OT: np.ndarray
    inflation: Evidence


@torch.inference_mode()
def read_text(
    pair: tuple[PreTrainedModel, PreTrainedModel],
    prompt: Sequence[int],
    decoded: Decoded,
    wanted: Verification,
    *,
    rule: str,
    rng: np.random.Generator,
) -> SampledText:
    """Read a text by both models again, without a cache."""
    vocab_size, token_ids, sampling = shared_vocab_size(*pair), decoded.token_ids, wanted.sampling
    context = first_tokens(pair[0], prompt)
    logits_TV, draft_logits_TV = (answer_logits(model, prompt, token_ids)[:, :vocab_size] for model in pair)
    seen_TV = seen_along(context, token_ids, sampling, logits_TV)
    p_TV, q_TV = (distribution(each_TV, sampling, seen_TV) for each_TV in (logits_TV, draft_logits_TV))
    for index, token in looked_up(context, decoded, wanted.lookup_policies.get(sampling.temperature)):
        q_TV[index] = torch.nn.functional.one_hot(torch.tensor(token), vocab_size).to(q_TV)
    return SampledText(
        quantiles_in_order(p_TV.double(), q_TV.double(), token_ids, rng),
        evidence(p_TV, q_TV, token_ids, decoded.rounds, rule),
    )


def looked_up(context: Sequence[int], decoded: Decoded, policy: ProposalPolicy | None) -> Iterator[tuple[int, int]]:
    """Where the text itself proposed, and which token: a draft that is sure of it, whatever the rule."""
    for round_ in decoded.rounds:
        if round_.looked_up and policy is not None:
            record = new_record(policy, [*context, *decoded.token_ids[: round_.start]])
            ids = record.proposal(policy, round_.proposed)[: round_.accepted + 1]
            yield from enumerate(ids, start=round_.start)


def quantiles_in_order(p_TV: Tensor, q_TV: Tensor, token_ids: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Where each token falls in the target's distribution, by q - p and by id: [O, T], uniform if all is well."""
    own_T1 = torch.tensor(token_ids, device=p_TV.device)[:, None]
    ids_V = torch.arange(p_TV.shape[1], device=p_TV.device).double()
    quantiles = []
    for order_TV in (p_TV - q_TV, ids_V.expand_as(p_TV)):
        own_order_T1 = order_TV.gather(1, own_T1)
        before_T = (p_TV * (order_TV < own_order_T1)).sum(dim=-1)
        level_T = (p_TV * (order_TV == own_order_T1)).sum(dim=-1)  # the token and any that are ordered as it is
        quantiles.append(before_T.cpu().numpy() + rng.random(len(token_ids)) * level_T.cpu().numpy())
    return np.stack(quantiles)


def counted(decoded: Sequence[Decoded], *, drafted_alone: bool = False) -> tuple[int, int]:
    """Proposed tokens that were kept, and all of them; perhaps of the draft alone."""
    rounds = [round_ for text in decoded for round_ in text.rounds if not (drafted_alone and round_.looked_up)]
    return sum(round_.accepted for round_ in rounds), sum(round_.proposed for round_ in rounds)


def kept_of(decoded: Sequence[Decoded]) -> str:
    return kept_words(*counted(decoded))


def kept_words(accepted: int, proposed: int) -> str:
    """So many of so many."""
    return f"{accepted} of {proposed} proposed tokens kept"

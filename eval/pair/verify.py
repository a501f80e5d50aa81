"""Proof that a pair decodes losslessly on this machine: that the draft changes how fast a text comes, and nothing else.

Three kinds of check, each on texts decoded for the purpose:

    greedy text      With the draft, the target writes the text it writes alone: the same tokens in float32. Each is its
                     argmax, or a near tie with it, when it reads the whole text again without a cache; that alone is
                     asked in half precision, where one token and several at once round differently.
    own draft        The target proposing to itself keeps everything.
    distribution     Sampled texts are the target's. Given the tokens before it, a token x drawn from p has a place
                     u = P(tokens ordered before x) + v p(x), v uniform, that is uniform in [0, 1] and independent from
                     token to token (Rosenblatt 1952, "Remarks on a multivariate transformation", with the usual jitter
                     for discrete p). Two orders are tested: by q - p, what the draft overstates first, where a fault in
                     favour of the draft shows, and by id, where one of random numbers does, since tokens are drawn in
                     that order. A Kolmogorov-Smirnov test of each decides; p is twice the smaller (Bonferroni).

Shape suffixes used in this file:
    T = tokens of a text, V = vocabulary
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import kstest
from torch import Tensor
from transformers import PreTrainedModel

from eval.decoding.rules import LOSSLESS, RULES
from eval.decoding.sampling import Sampling, distribution
from eval.decoding.sequencer import Opener, open_sequencer
from eval.decoding.speculative import GREEDY, plain_decode, speculative_decode
from eval.decoding.texts import Decoded, Limits, Seeds, Speculation, row_seed
from eval.models import shared_vocab_size
from eval.replay import answer_logits
from eval.rounds.round_trace import Run

LEAST_P = 1e-3  # a sound pair fails a distribution check once in a thousand times
LEAST_OWN = 0.98  # of its own proposals a target in half precision keeps; vLLM's tests of draft models ask the same
TIE_STEPS = 4  # roundings of the largest logit within which two count as a near tie


@dataclass(frozen=True)
class Verification:
    """What is decoded.

    Attributes:
        max_new_tokens: Length of a text at most.
        stop_ids: Tokens that end it.
        lookahead: Tokens proposed per round.
        sampling: Of the distribution checks; its temperature is above 0 and it has no repetition penalty.
        samples: Texts drawn for each prompt and rule.
        seed: Of every random number.
        opener: How the models are run.
    """

    max_new_tokens: int = 64
    stop_ids: AbstractSet[int] = frozenset()
    lookahead: int = 4
    sampling: Sampling = Sampling(1.0)  # noqa: RUF009  # never changes
    samples: int = 4
    seed: int = 17
    opener: Opener = open_sequencer

    @property
    def limits(self) -> Limits:
        """When a text ends."""
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
    same = sum(one.token_ids == own.token_ids for one, own in zip(decoded, plain, strict=True))
    detail = f"{same} of {len(prompts)} texts are those of plain decoding; {kept_of(decoded)}"
    ties, others, count = 0, 0, sum(len(one.token_ids) for one in decoded)
    for prompt, one in zip(prompts, decoded, strict=True):
        short_T, tolerance_T = shortfalls(target, prompt, one.token_ids)
        ties += int(((short_T > 0) & (short_T <= tolerance_T)).sum())
        others += int((short_T > tolerance_T).sum())
    detail += f"; of {count} tokens {ties} ({ties / count:.2%}) are near ties of the argmax and {others} are neither"
    holds = others == 0 and (same == len(prompts) or target.dtype != torch.float32)
    return Finding(run.label, holds, detail, run)


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
    places = [place for place in range(len(prompts)) for _ in range(samples)]
    speculation, seeds = Speculation(wanted.lookahead, rule=rule), wanted.seeds
    decoded = speculative_decode(
        *pair,
        [prompts[place] for place in places],
        limits=wanted.limits,
        speculation=speculation,
        sampling=sampling,
        seeds=seeds,
        row_seeds=[row_seed(row, list(RULES).index(rule)) for row in range(len(places))],
        opener=wanted.opener,
    )
    drafter = "target" if pair[0] is pair[1] else "draft"
    return Run(label, places, decoded, wanted.max_new_tokens, speculation, sampling, seeds, drafter)


def shortfalls(target: PreTrainedModel, prompt: Sequence[int], token_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """How far each token's logit is below the largest, and how far a near tie may be, both [T] in float32."""
    logits_TV = answer_logits(target, prompt, token_ids)
    own_T = logits_TV.gather(1, torch.tensor(token_ids, device=logits_TV.device)[:, None])[:, 0]
    tolerance_T = TIE_STEPS * torch.finfo(target.dtype).eps * logits_TV.abs().amax(dim=-1)
    return logits_TV.amax(dim=-1) - own_T, tolerance_T


def check_own_draft(target: PreTrainedModel, prompts: Sequence[Sequence[int]], wanted: Verification) -> Finding:
    """Whether the target keeps what it proposes itself."""
    run = decode_run("target as its own draft", (target, target), prompts, wanted)
    accepted, proposed = counted(run.decoded)
    least = 1.0 if target.dtype == torch.float32 else LEAST_OWN
    detail = f"{kept_of(run.decoded)}; asked: {least:.0%}"
    return Finding(run.label, proposed > 0 and accepted >= least * proposed, detail, run)


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
    rng = np.random.default_rng(wanted.seed)
    places = np.concatenate(
        [
            places_in_order((target, draft), prompts[place], one.token_ids, wanted.sampling, rng)
            for place, one in zip(run.places, run.decoded, strict=True)
        ],
        axis=1,
    )
    p_value = min(1.0, 2 * min(float(kstest(each, "uniform").pvalue) for each in places))
    detail = f"p = {p_value:.3g} from {places.shape[1]} tokens, asked: {LEAST_P:g}; {kept_of(run.decoded)}"
    return Finding(label, p_value >= LEAST_P, detail, run)


@torch.inference_mode()
def places_in_order(
    pair: tuple[PreTrainedModel, PreTrainedModel],
    prompt: Sequence[int],
    token_ids: Sequence[int],
    sampling: Sampling,
    rng: np.random.Generator,
) -> np.ndarray:
    """Where each token falls in the target's distribution, by q - p and by id: [2, T], uniform if all is well."""
    vocab_size = shared_vocab_size(*pair)
    p_TV, q_TV = (
        distribution(answer_logits(model, prompt, token_ids)[:, :vocab_size], sampling).double() for model in pair
    )
    own_T1 = torch.tensor(token_ids, device=p_TV.device)[:, None]
    ids_V = torch.arange(vocab_size, device=p_TV.device).double()
    found = []
    for order_TV in (p_TV - q_TV, ids_V.expand_as(p_TV)):
        own_order_T1 = order_TV.gather(1, own_T1)
        before_T = (p_TV * (order_TV < own_order_T1)).sum(dim=-1)
        level_T = (p_TV * (order_TV == own_order_T1)).sum(dim=-1)  # the token and any that are ordered as it is
        found.append(before_T.cpu().numpy() + rng.random(len(token_ids)) * level_T.cpu().numpy())
    return np.stack(found)


def counted(decoded: Sequence[Decoded]) -> tuple[int, int]:
    """Proposed tokens that were kept, and all of them."""
    rounds = [one for text in decoded for one in text.rounds]
    return sum(one.accepted for one in rounds), sum(one.proposed for one in rounds)


def kept_of(decoded: Sequence[Decoded]) -> str:
    """The same in words."""
    accepted, proposed = counted(decoded)
    return f"{accepted} of {proposed} proposed tokens kept"

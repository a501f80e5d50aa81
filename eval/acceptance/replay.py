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

Shape suffixes used in this file:
    B = 1 sequence, T = tokens of the answer, V = vocabulary entries,
    K = position in a round (1..lookahead), A = accepted tokens of a round (0..lookahead)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from architectures.vocabulary_head import head_ids, spread
from eval.acceptance.counts import Array, Counts, count_visits, remaining_after
from eval.decoding.acceptance import EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT, LOSSLESS, REJECTION
from eval.decoding.kv_cache import without_cudnn
from eval.decoding.sampling import Sampling, log_distribution, penalised, seen_along
from eval.decoding.speculative import first_tokens
from eval.models.loading import shared_vocab_size


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

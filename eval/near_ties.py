"""Near ties: tokens of a greedy text that are not the target's argmax, and whether honest rounding explains them.

One token and several at once are computed by different kernels, which round differently, so where two tokens nearly tie
an honest decoder may write either. How often, and how near, is measured and not assumed: the target reads each text
three times, at once without a cache, and by the cache of transformers one token a step and lookahead + 1 a step. None
of this runs the code that is judged.

    number    Where the argmax of a step-by-step reading is not that of the reading at once, an honest decoder went the
              other way. The text may do so as often, but for chance: given the tokens before, a text's own reading and
              another are exchangeable, so of the choices that only one of them made either is as likely to have made
              each (McNemar 1947, "Note on the sampling error of the difference between correlated proportions"). A
              choice counts once a text, because a text that goes in circles meets it again and again.
    size      A token may lie below the argmax by no more than the gap of the two best tokens differs between readings.

Shape suffixes used in this file:
    T = tokens of a text, V = vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import binomtest
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from eval.acceptance.replay import answer_logits
from eval.decoding.kv_cache import CACHE_ARGUMENT

MIN_P = 1e-3  # a sound pair fails a statistical check once in a thousand times
TIE_STEPS = 4  # roundings of the largest logit within which two count as a near tie, whatever is measured
TIE_NOISE = 1.5  # times the largest difference that was measured: the text's own reading is one more

Choice = tuple[int, int]  # the argmax of the reading at once, and the token that was taken in its place


@dataclass(frozen=True)
class TextTies:
    """What one text and other readings of it chose in place of the argmax.

    Attributes:
        tokens: Of the text.
        short: Logits that each token lies below the argmax, where it does, with the most that TIE_STEPS allow.
        own: Choices of the text.
        others: Those of each step-by-step reading; none if it was read at once alone.
        noise: Largest difference of the gap of the two best tokens between readings, in logits.
    """

    tokens: int
    short: tuple[tuple[float, float], ...]
    own: frozenset[Choice]
    others: tuple[frozenset[Choice], ...] = ()
    noise: float = 0.0


def read_all(
    target: PreTrainedModel, texts: Sequence[tuple[Sequence[int], Sequence[int]]], widths: Sequence[int]
) -> list[TextTies]:
    """Read texts, each a prompt and its tokens; step by step only if a token of any is not the argmax."""
    ties = [read_ties(target, prompt, token_ids) for prompt, token_ids in texts]
    if not any(text.short for text in ties):
        return ties
    return [read_ties(target, prompt, token_ids, widths) for prompt, token_ids in texts]


def read_ties(
    target: PreTrainedModel, prompt: Sequence[int], token_ids: Sequence[int], widths: Sequence[int] = ()
) -> TextTies:
    """Read a text at once, and again by so many tokens a step."""
    whole_TV = answer_logits(target, prompt, token_ids)
    own_T = torch.tensor(token_ids, device=whole_TV.device)
    short_T, tolerance_T = shortfalls(whole_TV, own_T, target.dtype)
    others, noise = [], 0.0
    for width in widths:
        other_TV = stepwise_logits(target, prompt, token_ids, width=width)
        others.append(choices(whole_TV, other_TV.argmax(dim=-1)))
        noise = max(noise, reading_noise(whole_TV, other_TV))
    below_T = short_T > 0
    short = tuple(zip(short_T[below_T].tolist(), tolerance_T[below_T].tolist(), strict=True))
    return TextTies(len(token_ids), short, choices(whole_TV, own_T), tuple(others), noise)


def shortfalls(logits_TV: Tensor, taken_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """How far each taken token's logit is below the largest, and TIE_STEPS roundings of that, both [T]."""
    tolerance_T = TIE_STEPS * torch.finfo(dtype).eps * logits_TV.abs().amax(dim=-1)
    return logits_TV.amax(dim=-1) - at_tokens(logits_TV, taken_T), tolerance_T


def choices(logits_TV: Tensor, taken_T: Tensor) -> frozenset[Choice]:
    """The tokens that were taken in place of an argmax with a larger logit."""
    lower_T = at_tokens(logits_TV, taken_T) < logits_TV.amax(dim=-1)
    best_T = logits_TV.argmax(dim=-1)
    return frozenset(zip(best_T[lower_T].tolist(), taken_T[lower_T].tolist(), strict=True))


def reading_noise(whole_TV: Tensor, other_TV: Tensor) -> float:
    """The largest difference between two readings of the gap of the two tokens that the first finds best."""
    return float((best_gap(whole_TV, whole_TV) - best_gap(whole_TV, other_TV)).abs().max())


def best_gap(ranking_TV: Tensor, logits_TV: Tensor) -> Tensor:
    """Logits of one reading between the two tokens that another ranks first and second, as [T]."""
    best_T2 = ranking_TV.topk(2, dim=-1).indices
    return at_tokens(logits_TV, best_T2[:, 0]) - at_tokens(logits_TV, best_T2[:, 1])


def at_tokens(logits_TV: Tensor, ids_T: Tensor) -> Tensor:
    """One logit of each row."""
    return logits_TV.gather(1, ids_T[:, None])[:, 0]


@torch.inference_mode()
def stepwise_logits(
    model: PreTrainedModel, prompt_ids: Sequence[int], answer_ids: Sequence[int], *, width: int
) -> Tensor:
    """As `answer_logits`, from so many tokens a step on the cache of transformers."""
    if model.config.is_encoder_decoder:
        encoded = model.get_encoder()(input_ids=torch.tensor([list(prompt_ids)], device=model.device), return_dict=True)
        context, name = [model.config.decoder_start_token_id], "decoder_input_ids"
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        how = {"encoder_outputs": encoded, CACHE_ARGUMENT: cache}
    else:
        context, name = list(prompt_ids), "input_ids"
        how = {CACHE_ARGUMENT: DynamicCache(config=model.config)}
    ids_1T = torch.tensor([[*context, *answer_ids[:-1]]], device=model.device)
    before = len(context) - 1
    pieces = [ids_1T[:, :before]] if before else []
    pieces += ids_1T[:, before:].split(width, dim=1)
    logits = [model(**{name: piece}, **how, use_cache=True).logits[0].float() for piece in pieces]
    return torch.cat(logits[1:] if before else logits)


@dataclass(frozen=True)
class Judgement:
    """Near ties of some texts beside those of honest readings.

    Attributes:
        tokens: Of all texts.
        ties: Tokens below the argmax by no more than honest readings explain.
        too_far: Tokens below it by more.
        largest: Logits that a token lies below the argmax at most.
        allowed: Logits that a near tie may: TIE_NOISE times what readings differ by.
        own: Choices that the texts made and the reading beside them did not.
        other: Choices the other way round.
        p_value: The chance of so many of the texts' own or more; of the readings the one that explains most.
    """

    tokens: int
    ties: int
    too_far: int
    largest: float
    allowed: float
    own: int
    other: int
    p_value: float

    @property
    def summary(self) -> str:
        """The numbers, labelled."""
        return (
            f"tokens {self.tokens}, near ties {self.ties} ({self.ties / self.tokens:.2%}), beyond a near tie "
            f"{self.too_far}; largest {self.largest:.2g} logits of {self.allowed:.2g} allowed; choices only of the "
            f"text {self.own}, only of an honest reading {self.other}, p = {self.p_value:.3g}, required: {MIN_P:g}"
        )


def judge_ties(texts: Sequence[TextTies]) -> Judgement:
    """Number and size of the near ties of some texts, all read by the same widths."""
    allowed = tie_allowance([text.noise for text in texts])
    short = [pair for text in texts for pair in text.short]
    too_far = sum(logits > min(allowed, tolerance) for logits, tolerance in short)
    compared = [compare_choices(texts, reading) for reading in range(len(texts[0].others))]
    own, other, p_value = max(compared, key=lambda pair: pair[2], default=(0, 0, 1.0))
    largest = max((logits for logits, _ in short), default=0.0)
    tokens = sum(text.tokens for text in texts)
    return Judgement(tokens, len(short) - too_far, too_far, largest, allowed, own, other, p_value)


def tie_allowance(noises: Sequence[float]) -> float:
    """Logits that a near tie may lie below the argmax, from what readings of some texts differ by."""
    return TIE_NOISE * max(noises, default=0.0)


def compare_choices(texts: Sequence[TextTies], reading: int) -> tuple[int, int, float]:
    """Choices that only the texts made, that only a reading of them made, and how likely so many of the first are."""
    own = sum(len(text.own - text.others[reading]) for text in texts)
    other = sum(len(text.others[reading] - text.own) for text in texts)
    return own, other, excess_p(own, other)


def excess_p(own: int, other: int) -> float:
    """The chance of so many of the first kind or more, if either kind is as likely; 1 of none."""
    return float(binomtest(own, own + other, 0.5, alternative="greater").pvalue) if own + other else 1.0


@dataclass(frozen=True)
class Parting:
    """Where two texts of one prompt first differ.

    Attributes:
        short: Logits that the token of either text lies below the argmax there.
        tolerance: Logits that TIE_STEPS allow.
        noise: By what two readings of the first text differ.
    """

    short: tuple[float, float]
    tolerance: float
    noise: float

    def is_tie(self, allowed: float) -> bool:
        """Whether both tokens are near the argmax."""
        return max(self.short) <= min(allowed, self.tolerance)

    def leaves(self, side: int) -> bool:
        """Whether one text alone has another token than the argmax."""
        return self.short[side] > 0 == self.short[1 - side]


def find_parting(
    target: PreTrainedModel, prompt: Sequence[int], first_ids: Sequence[int], other_ids: Sequence[int], *, width: int
) -> Parting | None:
    """Where two texts part; None where one goes on and the other has ended: there is nothing to tie.

    Args:
        target: Reads the first text at once, and by so many tokens a step.
        prompt: Of both.
        first_ids: The first text.
        other_ids: The second.
        width: Tokens a step.
    """
    index = next(
        (index for index, pair in enumerate(zip(first_ids, other_ids, strict=False)) if pair[0] != pair[1]), None
    )
    if index is None:
        return None
    whole_TV = answer_logits(target, prompt, first_ids)
    both_2V = whole_TV[[index, index]]
    short_2, tolerance_2 = shortfalls(
        both_2V, torch.tensor([first_ids[index], other_ids[index]], device=both_2V.device), target.dtype
    )
    noise = reading_noise(whole_TV, stepwise_logits(target, prompt, first_ids, width=width))
    first, second = short_2.tolist()
    return Parting((first, second), float(tolerance_2[0]), noise)

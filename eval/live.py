"""The live loop against plain decoding, prompt by prompt: the time it saves, and whether it obeys the replay."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel

from architectures.progress import track
from eval.acceptance import Counts, Estimate, Resampling, count_trace, pool
from eval.decoding.speculative import GREEDY, SEEDS, plain_decode, speculative_decode
from eval.decoding.texts import Decoded, Limits, Speculation
from eval.paired_ratios import paired_ratio_quotient
from eval.rounds.round_trace import Run
from eval.traces import Trace


@dataclass(frozen=True)
class LiveAnswer:
    """One prompt decoded twice at temperature 0.

    Attributes:
        recorded_ids: The target's answer as it was recorded, in a batch.
        plain: Decoded by the target alone.
        speculative: Decoded with the draft.
        lookahead: Tokens proposed per round.
    """

    recorded_ids: tuple[int, ...]
    plain: Decoded
    speculative: Decoded
    lookahead: int

    @property
    def counts(self) -> Counts:
        """The loop's own counts."""
        rounds = [(one.start, one.accepted) for one in self.speculative.rounds]
        return count_trace(rounds, num_tokens=len(self.speculative.token_ids), lookahead=self.lookahead)


def decode_live(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    answers: Sequence[Trace],
    *,
    lookahead: int,
    max_new_tokens: int,
    stop_ids: AbstractSet[int],
    seed: int,
) -> list[LiveAnswer]:
    """Decode each prompt with and without the draft, one right after the other, in an order drawn per prompt.

    Args:
        target: Decides every token.
        draft: Proposes tokens.
        answers: The target's greedy answers; their prompts are decoded again.
        lookahead: Tokens proposed per round.
        max_new_tokens: Length of an answer at most.
        stop_ids: Tokens that end an answer.
        seed: Of the order.
    """
    rng = np.random.default_rng(seed)
    limits, speculation = Limits(max_new_tokens, stop_ids), Speculation(lookahead)
    decoded = []
    for answer in track(answers, description="live decoding", total=len(answers)):
        plain_first = rng.random() < 0.5
        prompts = [answer.prompt_ids]
        early = plain_decode(target, prompts, limits=limits) if plain_first else None
        [speculative] = speculative_decode(target, draft, prompts, limits=limits, speculation=speculation)
        [plain] = early or plain_decode(target, prompts, limits=limits)
        decoded.append(LiveAnswer(answer.answer_ids, plain, speculative, lookahead))
    return decoded


def live_run(answers: Sequence[LiveAnswer], *, max_new_tokens: int) -> Run:
    """What was decoded with the draft, for the trace of its rounds; texts stand in the order of the answers."""
    return Run(
        label="live decoding",
        places=range(len(answers)),
        decoded=[one.speculative for one in answers],
        max_new_tokens=max_new_tokens,
        speculation=Speculation(answers[0].lookahead),
        sampling=GREEDY,
        seeds=SEEDS,
    )


def decoding_speedup(answers: Sequence[LiveAnswer], resampling: Resampling) -> Estimate:
    """Plain over speculative time per token, the reading of the prompt left out."""
    return time_quotient(answers, resampling, lambda text: text.decode_s)


def whole_speedup(answers: Sequence[LiveAnswer], resampling: Resampling) -> Estimate:
    """Plain over speculative time per token, from the prompt to the last token."""
    return time_quotient(answers, resampling, lambda text: text.prefill_s + text.decode_s)


def time_quotient(
    answers: Sequence[LiveAnswer], resampling: Resampling, seconds: Callable[[Decoded], float]
) -> Estimate:
    """Seconds per token of plain decoding over those of speculative decoding, pooled over prompts."""
    plain, speculative = (
        ([seconds(text) for text in texts], [len(text.token_ids) for text in texts])
        for texts in ([one.plain for one in answers], [one.speculative for one in answers])
    )
    return paired_ratio_quotient(plain, speculative, resampling)


@dataclass(frozen=True)
class Agreement:
    """How many live prompts did what was expected, and the counts of loop and replay.

    Attributes:
        num_prompts: Prompts decoded.
        same_text: Prompts whose speculative text is the plain one, token for token.
        same_as_recorded: Prompts whose speculative text is the recorded answer.
        same_counts: Prompts whose every count equals the replay's.
        loop: Counts of the loop, pooled.
        replay: Counts the replay gives for the recorded answers, pooled.
    """

    num_prompts: int
    same_text: int
    same_as_recorded: int
    same_counts: int
    loop: Counts
    replay: Counts

    @property
    def is_exact(self) -> bool:
        """Whether every text and every count agrees."""
        return self.num_prompts == self.same_text == self.same_as_recorded == self.same_counts


def compare_with_replay(answers: Sequence[LiveAnswer], replayed: Sequence[Counts]) -> Agreement:
    """Loop against replay, prompt by prompt.

    Args:
        answers: Live prompts.
        replayed: What the replay of each recorded answer gives at the same lookahead.
    """
    return Agreement(
        num_prompts=len(answers),
        same_text=sum(one.speculative.token_ids == one.plain.token_ids for one in answers),
        same_as_recorded=sum(one.speculative.token_ids == one.recorded_ids for one in answers),
        same_counts=sum(one.counts == counts for one, counts in zip(answers, replayed, strict=True)),
        loop=pool([one.counts for one in answers]),
        replay=pool(replayed),
    )

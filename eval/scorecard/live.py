"""Live decoding with proposals and without, prompt by prompt: what each way saves, and whether the replay holds."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedModel

from architectures.progress.track import track
from eval.acceptance.counts import Counts, count_trace, pool
from eval.acceptance.estimates import Columns, Estimate, Resampling
from eval.acceptance.paired_ratios import paired_ratio_quotient
from eval.answers.traces import Trace
from eval.decoding.ngram import NgramLookup
from eval.decoding.policy import ProposalPolicy
from eval.decoding.speculative import GREEDY, SEEDS, plain_decode, speculative_decode
from eval.decoding.texts import Decoded, Limits, Speculation
from eval.rounds.round_trace import Run

DRAFT = "draft"  # the way whose rounds are held against the replay


@dataclass(frozen=True)
class LiveWay:
    """Who proposes.

    Attributes:
        proposer: The draft, or the text alone.
        lookahead: Tokens it may propose per round.
        policy: When the text proposes in the place of a draft, and when nobody.
    """

    proposer: PreTrainedModel | NgramLookup
    lookahead: int
    policy: ProposalPolicy | None = None


@dataclass(frozen=True)
class LiveAnswer:
    """One prompt decoded by several ways at temperature 0.

    Attributes:
        recorded_ids: The target's answer as it was recorded, in a batch.
        plain: Decoded by the target alone.
        speculative: Decoded with the draft.
        lookahead: Tokens proposed per round.
        others: Decoded by each other way, by its name.
    """

    recorded_ids: tuple[int, ...]
    plain: Decoded
    speculative: Decoded
    lookahead: int
    others: Mapping[str, Decoded] = field(default_factory=dict)

    def by(self, way: str) -> Decoded:
        """The text of a way."""
        return self.speculative if way == DRAFT else self.others[way]

    @property
    def counts(self) -> Counts:
        rounds = [(round_.start, round_.accepted) for round_ in self.speculative.rounds]
        return count_trace(rounds, num_tokens=len(self.speculative.token_ids), lookahead=self.lookahead)


def decode_live(
    target: PreTrainedModel,
    ways: Mapping[str, LiveWay],
    answers: Sequence[Trace],
    *,
    max_new_tokens: int,
    stop_ids: AbstractSet[int],
    seed: int,
) -> list[LiveAnswer]:
    """Decode each prompt by the target alone and by every way, one right after the other, in an order drawn per prompt.

    Args:
        target: Decides every token.
        ways: By name; DRAFT is one of them.
        answers: The target's greedy answers; their prompts are decoded again.
        max_new_tokens: Length of an answer at most.
        stop_ids: Tokens that end an answer.
        seed: Of the order.
    """
    rng = np.random.default_rng(seed)
    limits, names = Limits(max_new_tokens, stop_ids), [None, *ways]
    decoded = []
    for answer in track(
        answers,
        description="live decoding",
        total=len(answers),
        works=lambda answer: len(answer.answer_ids),
        whole=sum(len(answer.answer_ids) for answer in answers),
    ):
        texts = {}
        for index in rng.permutation(len(names)):
            name = names[index]
            texts[name] = decode_by(target, None if name is None else ways[name], answer.prompt_ids, limits)
        plain, speculative = texts.pop(None), texts.pop(DRAFT)
        decoded.append(LiveAnswer(answer.answer_ids, plain, speculative, ways[DRAFT].lookahead, texts))
    return decoded


def decode_by(target: PreTrainedModel, way: LiveWay | None, prompt_ids: Sequence[int], limits: Limits) -> Decoded:
    """One prompt by one way; by the target alone where there is none."""
    if way is None:
        [text] = plain_decode(target, [prompt_ids], limits=limits)
        return text
    speculation = Speculation(way.lookahead)
    [text] = speculative_decode(
        target, way.proposer, [prompt_ids], limits=limits, speculation=speculation, lookup_policy=way.policy
    )
    return text


def live_run(answers: Sequence[LiveAnswer], *, max_new_tokens: int) -> Run:
    """What was decoded with the draft, for the trace of its rounds; texts stand in the order of the answers."""
    return Run(
        label="live decoding",
        prompt_indices=range(len(answers)),
        decoded=[answer.speculative for answer in answers],
        max_new_tokens=max_new_tokens,
        speculation=Speculation(answers[0].lookahead),
        sampling=GREEDY,
        seeds=SEEDS,
    )


def decoding_speedup(answers: Sequence[LiveAnswer], resampling: Resampling, way: str = DRAFT) -> Estimate:
    """Plain decoding's time per token over a way's, the reading of the prompt left out."""
    return paired_ratio_quotient(columns(answers, None, decoding_s), columns(answers, way, decoding_s), resampling)


def whole_speedup(
    answers: Sequence[LiveAnswer], resampling: Resampling, way: str = DRAFT, *, over: str | None = None
) -> Estimate:
    """Time per token of plain decoding, or of another way, over a way's, from the prompt to the last token."""
    return paired_ratio_quotient(columns(answers, over, whole_s), columns(answers, way, whole_s), resampling)


def columns(answers: Sequence[LiveAnswer], way: str | None, seconds: Callable[[Decoded], float]) -> Columns:
    """Seconds and tokens of every prompt by a way; by the target alone where there is none."""
    texts = [answer.plain if way is None else answer.by(way) for answer in answers]
    return [seconds(text) for text in texts], [len(text.token_ids) for text in texts]


def decoding_s(text: Decoded) -> float:
    """From the prompt's last token on."""
    return text.decode_s


def whole_s(text: Decoded) -> float:
    """The reading of the prompt included."""
    return text.prefill_s + text.decode_s


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
        same_text=sum(answer.speculative.token_ids == answer.plain.token_ids for answer in answers),
        same_as_recorded=sum(answer.speculative.token_ids == answer.recorded_ids for answer in answers),
        same_counts=sum(answer.counts == counts for answer, counts in zip(answers, replayed, strict=True)),
        loop=pool([answer.counts for answer in answers]),
        replay=pool(replayed),
    )

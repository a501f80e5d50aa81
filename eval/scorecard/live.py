"""Live decoding with proposals and without, prompt by prompt: what each way saves, and whether the replay holds.

Greedy texts are those of plain decoding, and their counts those of the replay, one by one. Sampled ones are not: their
rounds are drawn. So the replay is asked of the very texts that were written, and what it expects is compared over the
prompts by a t test.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import t as student_t
from transformers import PreTrainedModel

from architectures.progress.track import track
from eval.acceptance.counts import Counts, count_trace, pool
from eval.acceptance.estimates import Columns, Estimate, Resampling
from eval.acceptance.paired_ratios import paired_ratio_quotient
from eval.acceptance.replay import rule_name
from eval.answers.traces import Trace
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.decoding.texts import Decoded, Limits, Seeds, Speculation, row_seed
from eval.proposing.ngram import NgramLookup
from eval.proposing.policy import ProposalPolicy
from eval.rounds.round_trace import Run

LEAST_P = 1e-3  # a sound loop is said to differ from the replay once in a thousand scorings
ROUNDING = 1e-6  # rounds, of a sum of chances
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
    """One prompt decoded by several ways at one temperature.

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
    sampling: Sampling,
    seed: int,
) -> list[LiveAnswer]:
    """Decode each prompt by the target alone and by every way, one right after the other, in an order drawn per prompt.

    Args:
        target: Decides every token.
        ways: By name; DRAFT is one of them.
        answers: The target's answers; their prompts are decoded again.
        max_new_tokens: Length of an answer at most.
        stop_ids: Tokens that end an answer.
        sampling: How tokens are chosen, of target and draft.
        seed: Of the order, and of what is drawn.
    """
    rng = np.random.default_rng(seed)
    names = [None, *ways]
    decoded = []
    for row, answer in enumerate(
        track(
            answers,
            description=f"live decoding at T={sampling.temperature:g}",
            total=len(answers),
            works=lambda answer: len(answer.answer_ids),
            whole=sum(len(answer.answer_ids) for answer in answers),
        )
    ):
        texts, how = {}, Decoding(Limits(max_new_tokens, stop_ids), sampling, Seeds.of(seed), row_seed(row))
        for index in rng.permutation(len(names)):
            name = names[index]
            texts[name] = decode_by(target, None if name is None else ways[name], answer.prompt_ids, how)
        plain, speculative = texts.pop(None), texts.pop(DRAFT)
        decoded.append(LiveAnswer(answer.answer_ids, plain, speculative, ways[DRAFT].lookahead, texts))
    return decoded


@dataclass(frozen=True)
class Decoding:
    """How one prompt is decoded, by whichever way: the same numbers are drawn by all."""

    limits: Limits
    sampling: Sampling
    seeds: Seeds
    row_seed: int


def decode_by(target: PreTrainedModel, way: LiveWay | None, prompt_ids: Sequence[int], how: Decoding) -> Decoded:
    """One prompt by one way; by the target alone where there is none."""
    shared = {"limits": how.limits, "sampling": how.sampling, "seeds": how.seeds, "row_seeds": [how.row_seed]}
    if way is None:
        [text] = plain_decode(target, [prompt_ids], **shared)
        return text
    speculation = Speculation(way.lookahead, rule=rule_name(how.sampling.temperature))
    [text] = speculative_decode(
        target, way.proposer, [prompt_ids], speculation=speculation, lookup_policy=way.policy, **shared
    )
    return text


def live_run(answers: Sequence[LiveAnswer], *, max_new_tokens: int, sampling: Sampling, seed: int) -> Run:
    """What was decoded with the draft, for the trace of its rounds; texts stand in the order of the answers."""
    return Run(
        label="live decoding",
        prompt_indices=range(len(answers)),
        decoded=[answer.speculative for answer in answers],
        max_new_tokens=max_new_tokens,
        speculation=Speculation(answers[0].lookahead, rule=rule_name(sampling.temperature)),
        sampling=sampling,
        seeds=Seeds.of(seed),
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
        replay: Counts the replay gives, pooled: of the recorded answers, or of the sampled texts themselves.
        p_value: Of sampled texts: how often rounds would differ so much from what the replay expects of them.
    """

    num_prompts: int
    same_text: int
    same_as_recorded: int
    same_counts: int
    loop: Counts
    replay: Counts
    p_value: float | None = None

    @property
    def is_exact(self) -> bool:
        """Whether every greedy text and every count agrees; whether sampled ones do as far as chance allows."""
        if self.p_value is not None:
            return self.p_value >= LEAST_P
        return self.num_prompts == self.same_text == self.same_as_recorded == self.same_counts


def compare_with_replay(answers: Sequence[LiveAnswer], replayed: Sequence[Counts], *, is_greedy: bool) -> Agreement:
    """Loop against replay, prompt by prompt.

    Args:
        answers: Live prompts.
        replayed: What the replay gives at the same lookahead: of each recorded answer where texts are greedy, else of
            each text that was written with the draft.
        is_greedy: Whether texts are.
    """
    return Agreement(
        num_prompts=len(answers),
        same_text=sum(answer.speculative.token_ids == answer.plain.token_ids for answer in answers),
        same_as_recorded=sum(answer.speculative.token_ids == answer.recorded_ids for answer in answers),
        same_counts=sum(answer.counts == counts for answer, counts in zip(answers, replayed, strict=True)),
        loop=pool([answer.counts for answer in answers]),
        replay=pool(replayed),
        p_value=None if is_greedy else rounds_p_value([answer.counts for answer in answers], replayed),
    )


def rounds_p_value(counted: Sequence[Counts], expected: Sequence[Counts]) -> float:
    """Of a t test over prompts that the loop takes as many rounds as are expected; 1 where it takes just as many.

    Of one prompt nothing can be tested.
    """
    differences = [own.rounds - due.rounds for own, due in zip(counted, expected, strict=True)]
    if max(differences) - min(differences) < ROUNDING:
        return 1.0 if abs(differences[0]) < ROUNDING or len(differences) == 1 else 0.0
    error = np.std(differences, ddof=1) / len(differences) ** 0.5
    return float(2 * student_t.sf(abs(np.mean(differences)) / error, len(differences) - 1))

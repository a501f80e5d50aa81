"""Asks a target the questions of an exam alone and with a draft, greedily, and compares the answers.

Wrong answers are the target's own. What must hold is that the draft changes none: each text is the one of plain
decoding, or parts from it where the target's two best tokens nearly tie, which one token and several at once may round
differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binomtest

from architectures.progress.track import track
from eval.checks.exams import Exam
from eval.checks.loaded_pair import LoadedPair
from eval.checks.near_ties import Parting, excess_p, find_parting, tie_allowance
from eval.checks.verify import LEAST_P, Finding, kept_of
from eval.decoding.speculative import GREEDY, SEEDS, plain_decode, speculative_decode
from eval.decoding.texts import Decoded, Limits, Speculation
from eval.rounds.round_trace import Run
from eval.steps.sequencer import Opener, open_sequencer

CONFIDENCE = 0.95  # of the intervals


@dataclass(frozen=True)
class Asking:
    """How questions are put.

    Attributes:
        max_new_tokens: Of an answer; None leaves it to the exam.
        speculation: How the draft is used.
        batch_size: Questions answered together.
        opener: How the models are run.
    """

    max_new_tokens: int | None = None
    speculation: Speculation = Speculation()  # noqa: RUF009  # never changes
    batch_size: int = 16
    opener: Opener = open_sequencer


@dataclass(frozen=True)
class Outcome:
    """What became of some questions, each answered alone and with the draft.

    Attributes:
        alone: Whether the target's answer was right.
        drafted: Whether it was with the draft.
        equal: Whether the two texts are.
        tied: Whether they are not, but part at a near tie of the target.
        p_value: The chance that so many texts that part, or more, leave the target's argmax with the draft and not
            alone, if either is as likely.
    """

    alone: Sequence[bool]
    drafted: Sequence[bool]
    equal: Sequence[bool]
    tied: Sequence[bool]
    p_value: float = 1.0

    @property
    def holds(self) -> bool:
        """Whether the draft left every text as it is, but for near ties that go either way."""
        return self.p_value >= LEAST_P and all(equal or tied for equal, tied in zip(self.equal, self.tied, strict=True))

    def words(self) -> str:
        """The shares that are right, and how the texts compare."""
        count, num_equal, num_tied = len(self.equal), sum(self.equal), sum(self.tied)
        only_alone = sum(alone > drafted for alone, drafted in zip(self.alone, self.drafted, strict=True))
        only_drafted = sum(drafted > alone for alone, drafted in zip(self.alone, self.drafted, strict=True))
        return (
            f"alone {share_words(self.alone)}; with the draft {share_words(self.drafted)}; right only alone "
            f"{only_alone}, only with the draft {only_drafted}; {num_equal} of {count} texts are equal, {num_tied} "
            f"part at a near tie, {count - num_equal - num_tied} elsewhere; p = {self.p_value:.3g} that the draft does "
            f"not favour either side, asked: {LEAST_P:g}"
        )


def check_answers(pair: LoadedPair, exam: Exam, asking: Asking) -> Finding:
    """Answer every question twice; the finding holds unless the draft changed a text.

    Raises:
        UserError: If a model is made for fewer tokens than a question and its answer have.
    """
    prompts = [pair.rendered(question.prompt) for question in exam.questions]
    limits = Limits(asking.max_new_tokens or exam.max_new_tokens, pair.stop_ids)
    pair.require_context(prompts, limits.max_new_tokens)
    plain, drafted = decode_both(pair, prompts, limits, asking, description=exam.name)
    outcome = compare_answers(pair, exam, prompts, plain, drafted, width=asking.speculation.most + 1)
    num_cut = sum(not text.stopped for text in plain)
    cut = f"{num_cut} of {len(plain)} are cut at {limits.max_new_tokens} tokens"
    run = Run(exam.name, range(len(prompts)), drafted, limits.max_new_tokens, asking.speculation, GREEDY, SEEDS)
    return Finding(exam.name, outcome.holds, f"{outcome.words()}; {cut}; {kept_of(drafted)}", run)


def decode_both(
    pair: LoadedPair, prompts: Sequence[Sequence[int]], limits: Limits, asking: Asking, *, description: str
) -> tuple[list[Decoded], list[Decoded]]:
    """The texts of plain decoding, and those with the draft, batch after batch."""
    plain: list[Decoded] = []
    drafted: list[Decoded] = []
    starts = range(0, len(prompts), asking.batch_size)
    for start in track(starts, description=description, total=len(starts)):
        some = prompts[start : start + asking.batch_size]
        plain += plain_decode(pair.target, some, limits=limits, opener=asking.opener)
        drafted += speculative_decode(
            pair.target,
            pair.draft,
            some,
            limits=limits,
            speculation=asking.speculation,
            opener=asking.opener,
        )
    return plain, drafted


def compare_answers(
    pair: LoadedPair,
    exam: Exam,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Decoded],
    drafted: Sequence[Decoded],
    *,
    width: int,
) -> Outcome:
    """What the answers say, and whether they are the same; texts that part are read again by so many tokens a step."""
    ids = [(own.token_ids, with_draft.token_ids) for own, with_draft in zip(plain, drafted, strict=True)]
    equal = [own_ids == drafted_ids for own_ids, drafted_ids in ids]
    parted = [
        None if same else find_parting(pair.target, prompt, *both, width=width)
        for prompt, both, same in zip(prompts, ids, equal, strict=True)
    ]
    partings = [parting for parting in parted if parting is not None]
    allowed = tie_allowance([parting.noise for parting in partings])
    return Outcome(
        alone=[exam.is_right(index, written(pair, own_ids)) for index, (own_ids, _) in enumerate(ids)],
        drafted=[exam.is_right(index, written(pair, drafted_ids)) for index, (_, drafted_ids) in enumerate(ids)],
        equal=equal,
        tied=[parting is not None and parting.is_tie(allowed) for parting in parted],
        p_value=favour_p(partings),
    )


def favour_p(parted: Sequence[Parting]) -> float:
    """The chance of so many texts that only with the draft leave the argmax, if alone is as likely to."""
    alone, drafted = (sum(parting.leaves(side) for parting in parted) for side in (0, 1))
    return excess_p(drafted, alone)


def written(pair: LoadedPair, token_ids: Sequence[int]) -> str:
    text = pair.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def share_words(right: Sequence[bool]) -> str:
    """How many are right, their share, and its 95 % interval.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference", Journal of the American
    Statistical Association 22. Unlike p ± 1.96 √(p(1 − p)/n) it has a width where none or all are right.
    """
    count, total = sum(right), len(right)
    interval = binomtest(count, total).proportion_ci(CONFIDENCE, method="wilson")
    return f"{count} of {total} right, {count / total:.3f} [{interval.low:.3f}, {interval.high:.3f}]"

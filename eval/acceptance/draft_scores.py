"""Sums and counts of replayed answers, whole or parted into bins: what every figure of acceptance is made from. Pure.

Shape suffixes used in this file:
    T = tokens of one answer
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from eval.acceptance.counts import Array, Counts, pool
from eval.acceptance.replay import Replay, binned_counts, rule_name, rule_names

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

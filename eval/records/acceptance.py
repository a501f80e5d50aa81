"""What scorecards say of acceptance: raw counts beside every rate. docs/scoring.md explains every field."""

from dataclasses import dataclass

from eval.records.values import (
    Count,
    Counted,
    CountedRate,
    CountedTau,
    MeanRate,
    NotNegative,
    Positive,
    Rate,
    Some,
    Tau,
    only,
    require_equal,
)

Counts = tuple[NotNegative, ...]


@dataclass(frozen=True, kw_only=True)
class Position:
    """One position of a round."""

    position: Count
    possible: NotNegative
    reached: NotNegative
    accepted: NotNegative
    joint: Rate
    unconditional: CountedRate
    conditional: CountedRate


@dataclass(frozen=True, kw_only=True)
class PerPosition:
    """Counts of the positions in a round, the first position first."""

    possible: Counts
    reached: Counts
    accepted: Counts


@dataclass(frozen=True, kw_only=True)
class BinRounds:
    """Rounds at one lookahead that start at the tokens of a bin."""

    lookahead: Count
    rounds: NotNegative
    proposed: NotNegative
    decided: NotNegative
    accepted: NotNegative
    emitted: NotNegative
    fully_accepted: NotNegative
    histogram: Counts
    tau: CountedTau
    tau_per_prompt: CountedTau
    alpha_of_rounds: CountedRate
    utilisation: CountedRate
    per_position: PerPosition


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Rounds at one lookahead, each position in them, and each number kept."""

    lookahead: Count
    rounds: Positive
    proposed: NotNegative
    decided: NotNegative
    accepted: NotNegative
    emitted: NotNegative
    fully_accepted: NotNegative
    histogram: Counts
    tau: Tau
    tau_per_prompt: CountedTau
    alpha_of_rounds: CountedRate
    utilisation: CountedRate
    histogram_share: tuple[Rate, ...]
    positions: Some[Position]

    @property
    def full_rate(self) -> float:
        """The share of rounds that kept everything."""
        return self.fully_accepted / self.rounds


@dataclass(frozen=True, kw_only=True)
class RuleRow:
    """Acceptance under a rule that the scorecard does not lead with."""

    rule: str
    alpha: MeanRate
    alpha_of_text: MeanRate
    lookahead: Some[Rounds]


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Acceptance at the tokens of one bin, and of the rounds that start there."""

    bin: str
    prompts: Counted
    alpha: MeanRate
    alpha_of_text: MeanRate
    greedy_match: MeanRate
    coverage: MeanRate | None
    lookahead: tuple[BinRounds, ...]

    def at(self, lookahead: int) -> BinRounds:
        return only(self.lookahead, lambda rounds: rounds.lookahead == lookahead)


@dataclass(frozen=True, kw_only=True)
class Bins:
    """Tokens parted by task, category, position or entropy."""

    by: str
    bins: tuple[Bin, ...]


@dataclass(frozen=True, kw_only=True)
class RoundsByPrompt:
    """Rounds of each prompt."""

    lookahead: Count
    counts: Counts


@dataclass(frozen=True, kw_only=True)
class PromptSums:
    """Sums of every prompt, in the order of the scorecard's sources: what pairs two scorecards of the same answers."""

    tokens: Counts
    alpha: Counts
    greedy_match: Counts
    sayable: Counts | None
    rounds: tuple[RoundsByPrompt, ...]

    def __post_init__(self) -> None:
        columns = [self.tokens, self.alpha, self.greedy_match, self.sayable, *(entry.counts for entry in self.rounds)]
        require_equal(
            "numbers of prompts", sorted({len(column) for column in columns if column is not None}), [len(self.tokens)]
        )

    def rounds_at(self, lookahead: int) -> Counts:
        return only(self.rounds, lambda entry: entry.lookahead == lookahead).counts


@dataclass(frozen=True, kw_only=True)
class AcceptanceRow:
    """Acceptance of one draft at one temperature, under the rule the scorecard leads with first.

    Attributes:
        coverage: Share of tokens that the draft can say; null of one that says every id.
        by_prompt: Null in scorecards from before there was such a thing.
    """

    draft: str
    temperature: NotNegative
    rule: str
    answers: Count
    prompts: Count
    alpha: MeanRate
    alpha_of_text: MeanRate
    greedy_match: MeanRate
    coverage: MeanRate | None
    target_changed_tokens: Counted
    lookahead: Some[Rounds]
    other_rules: tuple[RuleRow, ...]
    bins: tuple[Bins, ...]
    by_prompt: PromptSums | None

    def at(self, lookahead: int) -> Rounds:
        return only(self.lookahead, lambda rounds: rounds.lookahead == lookahead)

    @property
    def lookaheads(self) -> list[int]:
        return [rounds.lookahead for rounds in self.lookahead]

    def bins_by(self, by: str) -> list[Bin]:
        """Those of one kind; none where a single bin holds everything."""
        return [bin_ for part in self.bins if part.by == by for bin_ in part.bins]

    @property
    def have_coverage(self) -> list[bool]:
        """Whether each figure has one: all of a draft with a small head must, and no others."""
        told = [self.coverage, *(bin_.coverage for part in self.bins for bin_ in part.bins)]
        told += [] if self.by_prompt is None else [self.by_prompt.sayable]
        return [coverage is not None for coverage in told]


@dataclass(frozen=True, kw_only=True)
class RecordedRow:
    """Acceptance of a draft along recorded answers, under one rule that they decide without their target."""

    draft: str
    temperature: NotNegative
    rule: str
    prompts: Count
    answers: Count
    accept_rate: MeanRate
    coverage: MeanRate | None
    lookahead: Some[Rounds]

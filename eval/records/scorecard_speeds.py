"""What scorecards say of speed: what step times promise, policies, and what live decoding was measured to do."""

from dataclasses import dataclass

from eval.acceptance.estimates import Estimate
from eval.policies.tune_stopping import StopRule
from eval.proposing.policy import ProposalPolicy
from eval.records.values import Count, Counted, NotNegative, Positive, Share, Some, SpeedUp, only

LOOKUP, POLICY = "n-gram lookup", "draft with its policy"  # ways of live decoding beside the draft alone


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Speed-up at one lookahead by measured terms, by formulas that assume independent accepts, and by bytes alone."""

    lookahead: Count
    predicted: Positive
    iid: Positive
    leviathan: Positive
    memory_bound: Positive | None
    break_even_alpha: Share | None


@dataclass(frozen=True, kw_only=True)
class SpeedupRow:
    """What the acceptance of one draft at one temperature is worth; predicted is that of the best lookahead."""

    draft: str
    temperature: NotNegative
    rule: str
    cost_ratio: Positive
    byte_ratio: Positive | None
    best_lookahead: Count
    predicted: Positive
    break_even_alpha: Share | None
    lookahead: Some[Forecast]

    def at(self, lookahead: int) -> Forecast:
        return only(self.lookahead, lambda forecast: forecast.lookahead == lookahead)

    @property
    def lookaheads(self) -> list[int]:
        return [forecast.lookahead for forecast in self.lookahead]


@dataclass(frozen=True, kw_only=True)
class LookupRow:
    """Looking up alone, at the lookahead at which it promises most."""

    lookahead: Count
    predicted: Positive
    tau: Positive


@dataclass(frozen=True, kw_only=True)
class PolicyRow:
    """What the policy of one temperature promises on the scored answers."""

    temperature: NotNegative
    tuned_on: Count
    lookahead: Count
    policy: ProposalPolicy
    predicted: Positive
    tau: Positive
    lookup: LookupRow


@dataclass(frozen=True, kw_only=True)
class StoppingRow:
    """What a draft alone promises on the scored answers where its own doubt ends rounds, by one rule.

    Attributes:
        rule: How rounds end (eval/proposing/stopping.py).
        least: The threshold that was tuned; 0 where rounds that never end early did best.
        lookahead: Tokens proposed at most, tuned likewise.
    """

    temperature: NotNegative
    tuned_on: Count
    rule: StopRule
    least: Share
    lookahead: Count
    predicted: Positive
    tau: Positive


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Time spent on the texts of one way."""

    tokens: Count
    prefill_s: Positive
    decode_s: Positive
    ms_per_token: Positive


@dataclass(frozen=True, kw_only=True)
class SpentByBoth(Spent):
    """The same, with what draft and target took of it."""

    draft_s: NotNegative
    verify_s: NotNegative


@dataclass(frozen=True, kw_only=True)
class RoundCounts:
    """The counts that loop and replay must share."""

    rounds: NotNegative
    accepted: NotNegative
    proposed: NotNegative


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How many live prompts did what was expected, and the counts of loop and replay.

    Attributes:
        p_value: Of sampled texts: that the loop takes as many rounds as the replay of these very texts expects.
    """

    exact: bool
    same_text: Counted
    same_as_recorded: Counted
    same_counts: Counted
    loop: RoundCounts
    replay: RoundCounts
    p_value: Share | None = None


@dataclass(frozen=True, kw_only=True)
class WayRow:
    """A way of live decoding beside the draft alone."""

    way: str
    lookahead: Count
    tau: Positive
    looked_up_rounds: Counted
    plain_rounds: Counted
    rounds: Count
    same_text: Counted
    speedup: SpeedUp
    decoding_speedup: SpeedUp
    spent: Spent


@dataclass(frozen=True, kw_only=True)
class OverLookup:
    """How many times as fast as looking up alone a way with a draft is, in the same turns."""

    way: str
    speedup: SpeedUp


@dataclass(frozen=True, kw_only=True)
class Live:
    """Measured speed-up of the live loop, and whether it did what the replay says.

    Attributes:
        ways: The others; empty in scorecards from before there were any.
        over_lookup: Likewise.
    """

    draft: str
    temperature: NotNegative
    lookahead: Count
    prompts: Count
    speedup: SpeedUp
    decoding_speedup: SpeedUp
    predicted_decoding_speedup: Positive
    plain: Spent
    speculative: SpentByBoth
    agreement: Agreement
    ways: tuple[WayRow, ...]
    over_lookup: tuple[OverLookup, ...]

    def way(self, name: str) -> WayRow | None:
        """One of the others; None where it was not decoded."""
        return next((row for row in self.ways if row.way == name), None)

    @property
    def main_speedup(self) -> Estimate:
        """Of the way the verdict is about: the draft with its policy, or the draft alone where none was tuned."""
        return (self.way(POLICY) or self).speedup

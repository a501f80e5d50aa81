"""What one draft does more than another on the same answers."""

from dataclasses import dataclass

from eval.acceptance.estimates import Estimate
from eval.records.values import Count, Counted, Gain, NotNegative, Share, only


@dataclass(frozen=True, kw_only=True)
class TokenTable:
    """Tokens at which each draft has the target's argmax."""

    both: Counted
    only_draft: Counted
    only_baseline: Counted
    neither: Counted


@dataclass(frozen=True, kw_only=True)
class PromptSigns:
    """Prompts by which draft has the target's argmax more often."""

    more: Counted
    fewer: Counted
    equal: Counted


@dataclass(frozen=True)
class MatchDifference(Estimate):
    """Of argmax agreement, with its tests; mcnemar_p over tokens is anticonservative, as they depend."""

    tokens: TokenTable
    mcnemar_p: Share
    prompts: PromptSigns
    sign_p: Share
    sign_flip_p: Share

    def __post_init__(self) -> None:
        super().__post_init__()
        if abs(self.value) > 1:
            raise ValueError(f"must lie between -1 and 1, got {self.value}")


@dataclass(frozen=True, kw_only=True)
class TauDifference:
    """At one lookahead."""

    lookahead: Count
    tau: Estimate


@dataclass(frozen=True, kw_only=True)
class RuleDifference:
    """Draft minus baseline under one rule."""

    rule: str
    alpha: Gain
    lookahead: tuple[TauDifference, ...]


@dataclass(frozen=True, kw_only=True)
class DifferenceRow:
    """Draft minus baseline at one temperature, under the rule the scorecard leads with first."""

    draft: str
    baseline: str
    temperature: NotNegative
    rule: str
    alpha: Gain
    lookahead: tuple[TauDifference, ...]
    other_rules: tuple[RuleDifference, ...]
    greedy_match: MatchDifference

    def at(self, lookahead: int) -> Estimate:
        """Of tau."""
        return only(self.lookahead, lambda tau: tau.lookahead == lookahead).tau

    @property
    def lookaheads(self) -> list[int]:
        return [tau.lookahead for tau in self.lookahead]

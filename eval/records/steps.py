"""Step times in milliseconds, as scorecards and grids of step times have them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, FiniteFloat

from eval.acceptance.estimates import Estimate
from eval.acceptance.intervals import holds
from eval.acceptance.speedup import StepTimes
from eval.records.evidence import StepEvidence
from eval.records.values import Count, Counted, Positive, Some, only

Bound = Annotated[FiniteFloat, Field(ge=0)]


@dataclass(frozen=True)
class Percentile:
    """A percentile with bounds by order statistics; a bound is null where no repetition is surely beyond it."""

    value: Positive
    interval: tuple[Bound | None, Bound | None] | None

    def __post_init__(self) -> None:
        low, high = self.interval or (None, None)
        if low is not None and high is not None and low > high:
            raise ValueError(f"must have a lower bound below the upper one, got {self.interval}")


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Milliseconds of one kind of step over all repetitions.

    Attributes:
        p10_ms: The 10th percentile.
        p50_ms: The median.
        p90_ms: The 90th percentile.
        p99_ms: The 99th; null of few repetitions (eval.latency.timing).
    """

    p10_ms: Percentile
    p50_ms: Estimate
    p90_ms: Percentile
    p99_ms: Percentile | None = None

    def __post_init__(self) -> None:
        median_ms, (low_ms, _) = self.p50_ms.value, self.p50_ms.interval or (0, None)
        if median_ms <= 0 or low_ms < 0 or not holds((self.p10_ms.value, self.p90_ms.value), median_ms):
            raise ValueError(f"must be above 0 and between p10_ms and p90_ms, got p50_ms {median_ms}")

    @property
    def median_ms(self) -> float:
        return self.p50_ms.value


@dataclass(frozen=True, kw_only=True)
class VerifyStep(StepTime):
    """The target, lookahead + 1 tokens at once."""

    lookahead: Count


@dataclass(frozen=True, kw_only=True)
class DraftSteps:
    """A draft.

    Attributes:
        draft: Its name.
        cost_ratio: Its step over the target's.
        one_token: Within a chain of such steps.
        two_tokens: At once, as after a round that kept everything.
    """

    draft: str
    cost_ratio: Positive
    one_token: StepTime
    two_tokens: StepTime


@dataclass(frozen=True, kw_only=True)
class ScoredLatency:
    """Steps of the target and all drafts, timed in turn; those of a scorecard at batch 1.

    Attributes:
        batch: Rows.
        context_tokens: Before each step.
        repeats: Timed repetitions of every step.
        warm_up_repeats: Untimed ones before them.
        settled: Whether warm-up ended because the times had settled.
        target: One token.
        verify: Several tokens, by lookahead.
        drafts: Each of them.
        evidence: What these times are held against; null in files of before there was any.
    """

    batch: Count
    context_tokens: Count
    repeats: Count
    warm_up_repeats: Counted
    settled: bool
    target: StepTime
    verify: Some[VerifyStep]
    drafts: Some[DraftSteps]
    evidence: StepEvidence | None = None

    @property
    def lookaheads(self) -> list[int]:
        """Those whose verification was timed."""
        return [step.lookahead for step in self.verify]

    @property
    def steps(self) -> list[StepTime]:
        """Every kind of step, of the target and of all drafts."""
        of_drafts = [step for draft in self.drafts for step in (draft.one_token, draft.two_tokens)]
        return [self.target, *self.verify, *of_drafts]

    def verify_at(self, lookahead: int) -> VerifyStep:
        return only(self.verify, lambda step: step.lookahead == lookahead)

    def of(self, draft: str) -> DraftSteps:
        """The steps of one draft."""
        return only(self.drafts, lambda steps: steps.draft == draft)

    def step_times(
        self, draft: str, milliseconds: Callable[[StepTime], float] = lambda step: step.median_ms
    ) -> StepTimes:
        """The steps of the target and one draft in seconds: medians, or what else stands for each."""
        own = self.of(draft)
        return StepTimes(
            target_s=milliseconds(self.target) / 1000,
            draft_s=milliseconds(own.one_token) / 1000,
            draft_two_s=milliseconds(own.two_tokens) / 1000,
            verify_s={step.lookahead: milliseconds(step) / 1000 for step in self.verify},
        )

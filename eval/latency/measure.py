"""Step times of one target and some drafts, in one place: a batch, a context, a way to run the models."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedModel

from architectures.progress.track import track
from eval.acceptance.estimates import Resampling
from eval.acceptance.speedup import StepTimes
from eval.latency.evidence import Started, step_evidence
from eval.latency.steps import Kind, Setting, decoding_steps, prefill_steps
from eval.latency.timing import Timed, time_alone, time_together
from eval.records.evidence import StepEvidence
from eval.records.grid import TARGET
from eval.scorecard_schema import StepTime

MEAN_WARM_UPS = 12  # repetitions, of 10 to 20


@dataclass(frozen=True)
class Latency:
    """Step times of one target and several drafts, measured together.

    Attributes:
        context: Tokens in every row of the caches before each step.
        repeats: Timed repetitions of every step.
        warm_up_repeats: Untimed ones before them.
        is_settled: Whether warm-up ended because the times had settled.
        times: Of every kind of step.
        seconds: The same, one for each repetition.
        evidence: What they are held against.
    """

    context: int
    repeats: int
    warm_up_repeats: int
    is_settled: bool
    times: Mapping[Kind, StepTime]
    seconds: Mapping[Kind, Sequence[float]]
    evidence: StepEvidence | None = None

    @property
    def target(self) -> StepTime:
        return self.times[Kind(TARGET, 1)]

    @property
    def verify(self) -> dict[int, StepTime]:
        """The target, lookahead + 1 tokens, by lookahead."""
        steps = (kind for kind in self.times if kind.model == TARGET and not kind.is_prefill)
        return {kind.tokens - 1: self.times[kind] for kind in steps if kind.tokens > 1}

    @property
    def drafts(self) -> list[str]:
        """The drafts' names, in the order they were given."""
        return list(dict.fromkeys(kind.model for kind in self.times if kind.model != TARGET))

    def draft(self, name: str) -> StepTime:
        """A draft, one token within a chain."""
        return self.times[Kind(name, 1)]

    def draft_two(self, name: str) -> StepTime:
        """A draft, two tokens at once."""
        return self.times[Kind(name, 2)]

    def step_times(self, draft: str) -> StepTimes:
        """The medians of the target and one draft."""
        return StepTimes(
            target_s=self.target.median_ms / 1000,
            draft_s=self.draft(draft).median_ms / 1000,
            draft_two_s=self.draft_two(draft).median_ms / 1000,
            verify_s={lookahead: time.median_ms / 1000 for lookahead, time in self.verify.items()},
        )

    def resampled_step_times(self, draft: str, lookaheads: Sequence[int], resampling: Resampling) -> list[StepTimes]:
        """Medians of repetitions drawn anew, the same for every kind of step: what they share cancels in ratios."""
        rng, shape = np.random.default_rng(resampling.seed), (resampling.num_resamples, self.repeats)
        indices_NR = rng.integers(self.repeats, size=shape)
        verified = (Kind(TARGET, lookahead + 1) for lookahead in lookaheads)
        kinds = (Kind(TARGET, 1), Kind(draft, 1), Kind(draft, 2), *verified)
        medians = [np.median(np.array(self.seconds[kind])[indices_NR], axis=1).tolist() for kind in kinds]
        return [
            StepTimes(target_s, draft_s, draft_two_s, dict(zip(lookaheads, verify_s, strict=True)))
            for target_s, draft_s, draft_two_s, *verify_s in zip(*medians, strict=True)
        ]


@torch.inference_mode()
def measure_latency(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    setting: Setting,
    *,
    lookaheads: Sequence[int],
    repetitions: Iterable[object],
    resampling: Resampling,
) -> Latency:
    """Time every kind of step that decoding with these drafts takes, in turn.

    Args:
        target: Verifies.
        drafts: Propose; by name, none of which is TARGET.
        setting: Where.
        lookaheads: Numbers of draft tokens whose verification is timed.
        repetitions: One item for each of every step; what happens until it comes is not timed.
        resampling: Its confidence is that of percentiles, its seed draws the order of the steps.
    """
    steps, started = decoding_steps(target, drafts, setting, lookaheads), Started()
    timed = time_together(steps, np.random.default_rng(resampling.seed), repetitions)
    latency = latency_of(timed, len(setting.context_ids), resampling)
    return replace(latency, evidence=evidence_of(latency, {TARGET: target, **drafts}, setting, started))


def evidence_of(
    latency: Latency, models: Mapping[str, PreTrainedModel], setting: Setting, started: Started
) -> StepEvidence:
    """What these step times are held against."""
    medians_ms = {name: latency.times[Kind(name, 1)].median_ms for name in models}
    return step_evidence(models, medians_ms, setting, started)


@torch.inference_mode()
def measure_both_ways(
    models: Mapping[str, PreTrainedModel],
    setting: Setting,
    *,
    lookaheads: Sequence[int],
    with_prefill: bool,
    repeats: int,
    advance: Callable[[float], None],
    resampling: Resampling,
) -> tuple[Latency, Latency]:
    """Time every kind of step in turn with the others, and again by itself.

    Args:
        models: TARGET and the drafts, by name.
        setting: Where.
        lookaheads: Numbers of draft tokens whose verification is timed.
        with_prefill: Whether the reading of the context is timed too.
        repeats: Timed repetitions of every step, each of the two ways.
        advance: Told the share of all this that is done.
        resampling: As for `measure_latency`.
    """
    drafts = {name: model for name, model in models.items() if name != TARGET}
    steps = decoding_steps(models[TARGET], drafts, setting, lookaheads)
    if with_prefill:
        steps |= prefill_steps(models, setting)
    rng = np.random.default_rng(resampling.seed)
    together = time_together(steps, rng, shares_in_turn(repeats, advance))
    alone = time_alone(steps, rng, repeats, after_each=lambda: advance(0.5 / len(steps)))
    context = len(setting.context_ids)
    return latency_of(together, context, resampling), latency_of(alone, context, resampling)


def shares_in_turn(repeats: int, advance: Callable[[float], None]) -> Iterator[int]:
    """So many repetitions, which with the warm-up before them are half of what is done both ways."""
    share = 0.5 / (MEAN_WARM_UPS + repeats)
    advance(MEAN_WARM_UPS * share)
    for repeat in range(repeats):
        yield repeat
        advance(share)


def timing_ticks(repeats: int) -> Iterable[int]:
    """So many repetitions, with a bar."""
    return track(range(repeats), description="timing steps", total=repeats)


def latency_of(timed: Timed[Kind], context: int, resampling: Resampling) -> Latency:
    """What was measured, in percentiles."""
    repeats = len(next(iter(timed.seconds.values())))
    return Latency(
        context, repeats, timed.warm_up_repeats, timed.is_settled, timed.times(resampling.confidence), timed.seconds
    )

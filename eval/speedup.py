"""Speedup predicted from acceptance and step times: best k, break-even acceptance, ranking of drafts. Pure; no torch.

One verification step with k drafted tokens emits tau(k) tokens. It costs k draft steps and one verification of k + 1
tokens by the target; plain decoding costs one target step per token. After a step that accepted all k tokens the draft
must catch up on the last of them, so its next first step takes two tokens:

    S(k) = tau(k) T_target / (k T_draft + f(k) (T_draft_two - T_draft) + T_verify(k))

with f(k) the share of steps that accepted all k tokens. A batch ends a step when all its rows have, and its draft
catches up if any row accepted everything: in a share of 1 - (1 - f)^b of the steps of b independent rows.

Source: Sadhukhan et al. 2024, "MagicDec", eq. 1 (arXiv 2408.11049), with the catch-up step added. With T_verify =
T_target and T_draft_two = T_draft it is theorem 3.8 of Leviathan et al. 2023 (arXiv 2211.17192).

Shape suffixes used in this file:
    P = prompts, N = draws
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root_scalar

from eval.intervals import (
    Resampling,
    degrees_of_freedom,
    drawn_errors,
    jackknife_influence,
    least_units,
    percentile_interval,
)
from eval.scorecard_schema import AcceptanceRow, ScoredLatency, StepsAtK, StepTime, StepTimes

Array = NDArray[np.float64]


def iid_tau(alpha: float, num_speculative_tokens: int) -> float:
    """Return tokens per step if every proposal is accepted with probability alpha, independently.

    Source: Leviathan et al. 2023, eq. 1 (arXiv 2211.17192), as a sum that also holds at alpha = 1.
    """
    return sum(alpha**k for k in range(num_speculative_tokens + 1))


def predicted_speedup(tau: float, full_rate: float, num_speculative_tokens: int, times: StepTimes) -> float:
    """Return plain decoding time over speculative decoding time, from measured acceptance and step times.

    Args:
        tau: Tokens per verification step at this k, the target's own included; of a batch, the plain decoding steps
            that a verification step replaces.
        full_rate: Share of the steps that accepted all proposals; of a batch, in any of its rows.
        times: Measured steps; must hold verify_s for this k.
    """
    catch_up_s = full_rate * (times.draft_two_s - times.draft_s)
    step_s = num_speculative_tokens * times.draft_s + catch_up_s + times.verify_s[num_speculative_tokens]
    return tau * times.target_s / step_s


def iid_speedup(alpha: float, num_speculative_tokens: int, times: StepTimes, batch: int = 1) -> float:
    """Return the speedup if every proposal is accepted with probability alpha, independently, in each row of a batch.

    Source: theorem 3.8 of Leviathan et al. 2023 (arXiv 2211.17192) when times are the ideal ones.
    """
    full_rate = 1 - (1 - alpha**num_speculative_tokens) ** batch
    return predicted_speedup(iid_tau(alpha, num_speculative_tokens), full_rate, num_speculative_tokens, times)


def best_k(speedups: Mapping[int, float]) -> int:
    """Return the k with the largest speedup, the smallest of several."""
    return max(sorted(speedups), key=lambda k: speedups[k])


def break_even_alpha(num_speculative_tokens: int, times: StepTimes, batch: int = 1) -> float | None:
    """Return the alpha in [0, 1] at which drafting pays, with independent acceptance; None if not even 1 does."""
    return root_in_unit(lambda alpha: iid_speedup(alpha, num_speculative_tokens, times, batch) - 1)


def root_in_unit(gain: Callable[[float], float]) -> float | None:
    """Return the root of an increasing gain in [0, 1]: 0 if it is nowhere negative, None if it is not positive at 1."""
    if gain(1.0) <= 0:
        return None
    return 0.0 if gain(0.0) >= 0 else float(root_scalar(gain, bracket=(0.0, 1.0)).root)


def promise(acceptance: Sequence[StepsAtK], steps: StepTimes, *, batch: int = 1) -> tuple[int, float]:
    """Return the best k and its predicted speedup.

    Args:
        acceptance: Of one draft at one temperature.
        steps: Of it and its target, at this batch; values of k without a timed verification are skipped.
    """
    speedups = {
        entry.num_speculative_tokens: predicted_speedup(
            entry.tau.value, any_full_rate(entry, batch), entry.num_speculative_tokens, steps
        )
        for entry in acceptance
        if entry.num_speculative_tokens in steps.verify_s
    }
    k = best_k(speedups)
    return k, speedups[k]


def any_full_rate(steps: StepsAtK, batch: int) -> float:
    return 1 - (1 - steps.full_rate) ** batch


@dataclass(frozen=True)
class Ranked:
    """A ranked draft.

    Attributes:
        speedup: Predicted, over plain decoding, prefill excluded.
        interval: None with too few prompts or repetitions.
        first_share: Share of the draws in which it is the fastest.
    """

    draft: str
    num_speculative_tokens: int
    speedup: float
    interval: tuple[float, float] | None
    tokens_per_s: float
    first_share: float


def ranking(rows: Sequence[AcceptanceRow], latency: ScoredLatency, resampling: Resampling) -> list[Ranked]:
    """Rank drafts, the fastest first.

    Args:
        rows: Of drafts of one target on the same responses, with the sums of every prompt.
    """
    steps = step_times(latency)
    chosen = {row.draft: promise(row.by_k, steps[row.draft], batch=latency.batch) for row in rows}
    drawn = {
        row.draft: drawn_speedups(
            row, chosen[row.draft][0], drawn_times(latency, row.draft, resampling), resampling, batch=latency.batch
        )
        for row in rows
    }
    num_prompts = min(len(row.by_prompt.tokens) for row in rows)
    firsts_N = np.array(list(drawn.values())).argmax(axis=0)
    ranked = [
        Ranked(
            draft=name,
            num_speculative_tokens=k,
            speedup=speedup,
            interval=drawn_interval(drawn[name], latency, resampling, num_prompts),
            tokens_per_s=speedup / steps[name].target_s,
            first_share=float((firsts_N == index).mean()),
        )
        for index, (name, (k, speedup)) in enumerate(chosen.items())
    ]
    return sorted(ranked, key=lambda draft: -draft.speedup)


def predicted_interval(
    row: AcceptanceRow, num_speculative_tokens: int, latency: ScoredLatency, resampling: Resampling
) -> tuple[float, float] | None:
    """Return the interval of a predicted speedup from the uncertainty of acceptance and step times.

    None with too few prompts or repetitions.
    """
    drawn_N = drawn_speedups(row, num_speculative_tokens, drawn_times(latency, row.draft, resampling), resampling)
    return drawn_interval(drawn_N, latency, resampling, len(row.by_prompt.tokens))


def drawn_interval(
    drawn_N: Array, latency: ScoredLatency, resampling: Resampling, num_prompts: int
) -> tuple[float, float] | None:
    """Return the percentile interval of drawn speedups; None with too few prompts or repetitions."""
    intervals = [step.p50_ms.interval for step in latency.steps.values()]
    if num_prompts < least_units(resampling.confidence) or None in intervals:
        return None
    return percentile_interval(drawn_N, resampling.confidence)


def drawn_speedups(
    row: AcceptanceRow,
    num_speculative_tokens: int,
    times: Sequence[StepTimes],
    resampling: Resampling,
    *,
    batch: int = 1,
) -> Array:
    """Return a draft's speedup in every draw of its acceptance length and of times, at one k.

    With one seed and the same responses, a draw of the prompts is the same for all drafts.
    """
    columns_2P = np.array([row.by_prompt.tokens, row.by_prompt.steps_at(num_speculative_tokens)], dtype=np.float64)
    [errors_N] = drawn_errors(
        jackknife_influence(columns_2P, lambda tokens, steps: np.log(tokens / steps))[np.newaxis],
        degrees_of_freedom(columns_2P[:1]),
        num_draws=resampling.num_resamples,
        seed=resampling.seed,
    )
    taus_N = columns_2P[0].sum() / columns_2P[1].sum() * np.exp(errors_N)
    [full_rate] = [
        any_full_rate(entry, batch) for entry in row.by_k if entry.num_speculative_tokens == num_speculative_tokens
    ]
    return np.array(
        [
            predicted_speedup(tau, full_rate, num_speculative_tokens, each)
            for tau, each in zip(taus_N, times, strict=True)
        ]
    )


def step_times(latency: ScoredLatency) -> dict[str, StepTimes]:
    return {draft.draft: latency.step_times(draft.draft) for draft in latency.drafts}


def drawn_times(latency: ScoredLatency, draft: str, resampling: Resampling) -> list[StepTimes]:
    """Draw step times for every resample, from normal distributions as wide as the intervals of the medians.

    With one seed, a draw of a target's step is the same for all drafts.
    """
    latency.of(draft)  # raises UserError if it was not timed
    rng, spread = np.random.default_rng(resampling.seed), NormalDist().inv_cdf((1 + resampling.confidence) / 2)
    drawn = {
        id(step): step.median_ms + width(step) / (2 * spread) * rng.standard_normal(resampling.num_resamples)
        for step in latency.steps.values()
    }
    return [
        latency.step_times(draft, lambda step, index=index: max(drawn[id(step)][index], 1e-9))
        for index in range(resampling.num_resamples)
    ]


def width(step: StepTime) -> float:
    """Return the width of a median's interval in milliseconds; 0 if there is none."""
    interval = step.p50_ms.interval
    return interval[1] - interval[0] if interval else 0.0


@dataclass(frozen=True)
class Prospect:
    """Upper bound of a shape's speedup, from its step times only.

    Attributes:
        num_speculative_tokens: The k with the lowest break-even acceptance.
        least_alpha: Acceptance rate at which drafting begins to pay; None if not even 1 does.
        most: Speedup if everything were accepted, at the best k.
    """

    num_speculative_tokens: int
    least_alpha: float | None
    cost_ratio: float
    most: float


def prospect(steps: StepTimes, batch: int = 1) -> Prospect:
    needed = {k: break_even_alpha(k, steps, batch) for k in steps.verify_s}
    paying = {k: alpha for k, alpha in needed.items() if alpha is not None}
    num_speculative_tokens = min(paying, key=lambda each: paying[each]) if paying else min(needed)
    most = max(iid_speedup(1.0, each, steps, batch) for each in steps.verify_s)
    return Prospect(num_speculative_tokens, paying.get(num_speculative_tokens), steps.cost_ratio, most)

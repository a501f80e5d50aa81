"""Sections of scorecard.json: raw counts beside every rate. Pure; docs/scoring.md explains every field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.acceptance import (
    Counts,
    Estimate,
    Resampling,
    paired_ratio_difference,
    pool,
    pooled_ratio,
    ratio,
    tau,
    utilisation,
)
from eval.latency import Latency, StepTime
from eval.live import Agreement, LiveAnswer, decoding_speedup, whole_speedup
from eval.replay import Replay, replay_counts, rule_name
from eval.speculative import Decoded
from eval.speedup import StepTimes, best_lookahead, break_even_alpha, ideal_times, iid_speedup, predicted_speedup

Record = dict[str, Any]


@dataclass(frozen=True)
class AnswerScore:
    """What a draft does along one answer of the target.

    Attributes:
        prompt: Which prompt it answers; a conversation of several turns is one prompt.
        num_tokens: Tokens of the answer.
        alpha_sum: Sum over them of the chance that a proposal is kept.
        num_matches: Of them, those at which draft and target have one argmax.
        num_changed: At temperature 0, those the teacher-forced target would not choose again.
        counts: Expected counts of its rounds, by lookahead.
    """

    prompt: int
    num_tokens: int
    alpha_sum: float
    num_matches: int
    num_changed: int
    counts: Mapping[int, Counts]


@dataclass(frozen=True)
class DraftScore:
    """What a draft does along all answers at one temperature."""

    draft: str
    temperature: float
    answers: Sequence[AnswerScore]

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

    def tau_columns(self, lookahead: int) -> tuple[list[float], list[float]]:
        """Per prompt: tokens emitted, and rounds."""
        return (
            self.per_prompt(lambda answer: answer.counts[lookahead].emitted_tokens),
            self.per_prompt(lambda answer: answer.counts[lookahead].rounds),
        )

    def pooled(self, lookahead: int) -> Counts:
        """Counts over all answers."""
        return pool([answer.counts[lookahead] for answer in self.answers])


def score_answer(replay: Replay, *, rule: str, prompt: int, lookaheads: Sequence[int]) -> AnswerScore:
    """Sums and counts of one answer, replayed under one rule."""
    accepts = replay.rules[rule]
    return AnswerScore(
        prompt=prompt,
        num_tokens=replay.num_tokens,
        alpha_sum=float(accepts.alpha.sum()),
        num_matches=int(replay.match.sum()),
        num_changed=int(np.isneginf(replay.target_logp).sum()),
        counts={lookahead: replay_counts(accepts.accept, lookahead=lookahead) for lookahead in lookaheads},
    )


def acceptance_record(score: DraftScore, resampling: Resampling) -> Record:
    """Acceptance of one draft at one temperature."""
    sums, tokens = score.alpha_columns()
    num_matches = sum(answer.num_matches for answer in score.answers)
    return {
        "draft": score.draft,
        "temperature": score.temperature,
        "rule": rule_name(score.temperature),
        "prompts": len(tokens),
        "answers": len(score.answers),
        "alpha": {**estimate_record(pooled_ratio(sums, tokens, resampling)), "sum": sum(sums), "tokens": sum(tokens)},
        "greedy_match": {"value": num_matches / sum(tokens), "sum": num_matches, "tokens": sum(tokens)},
        "target_changed_tokens": sum(answer.num_changed for answer in score.answers),
        "lookahead": [lookahead_record(score, lookahead, resampling) for lookahead in score.lookaheads],
    }


def lookahead_record(score: DraftScore, lookahead: int, resampling: Resampling) -> Record:
    """Counts and rates of the rounds at one lookahead."""
    emitted, rounds = score.tau_columns(lookahead)
    counts = score.pooled(lookahead)
    return {
        "lookahead": lookahead,
        "rounds": counts.rounds,
        "proposed": counts.proposed_tokens,
        "accepted": counts.accepted_tokens,
        "emitted": counts.emitted_tokens,
        "fully_accepted": counts.fully_accepted_rounds,
        "tau": estimate_record(pooled_ratio(emitted, rounds, resampling)),
        "tau_per_prompt": float(np.mean(np.divide(emitted, rounds))),
        "utilisation": utilisation(counts),
        "positions": [
            {
                "position": position,
                "possible": possible,
                "reached": reached,
                "accepted": accepted,
                "unconditional": ratio(accepted, possible),
                "conditional": ratio(accepted, reached),
            }
            for position, (possible, reached, accepted) in enumerate(
                zip(counts.possible, counts.reached, counts.accepted, strict=True), start=1
            )
        ],
    }


def difference_record(draft: DraftScore, baseline: DraftScore, resampling: Resampling) -> Record:
    """Draft minus baseline on the same answers."""
    alpha = paired_ratio_difference(draft.alpha_columns(), baseline.alpha_columns(), resampling)
    taus = {
        lookahead: paired_ratio_difference(draft.tau_columns(lookahead), baseline.tau_columns(lookahead), resampling)
        for lookahead in draft.lookaheads
    }
    return {
        "draft": draft.draft,
        "baseline": baseline.draft,
        "temperature": draft.temperature,
        "rule": rule_name(draft.temperature),
        "alpha": estimate_record(alpha),
        "lookahead": [{"lookahead": lookahead, "tau": estimate_record(tau)} for lookahead, tau in taus.items()],
    }


def latency_record(latency: Latency) -> Record:
    """Step times of the target and every draft."""
    return {
        "batch": 1,
        "context_tokens": latency.context,
        "repeats": latency.repeats,
        "warm_up_repeats": latency.warm_up_repeats,
        "settled": latency.is_settled,
        "target": step_record(latency.target),
        "verify": [{"lookahead": lookahead, **step_record(time)} for lookahead, time in latency.verify.items()],
        "drafts": [
            {
                "draft": name,
                "cost_ratio": latency.step_times(name).cost_ratio,
                "one_token": step_record(latency.draft[name]),
                "two_tokens": step_record(latency.draft_two[name]),
            }
            for name in latency.draft
        ],
    }


def speedup_record(score: DraftScore, times: StepTimes) -> Record:
    """What the acceptance of one draft at one temperature is worth with these step times."""
    alpha = ratio(*(sum(column) for column in score.alpha_columns()))
    assert alpha is not None
    rows = [predicted_record(score, lookahead, alpha, times) for lookahead in score.lookaheads]
    best = best_lookahead({row["lookahead"]: row["predicted"] for row in rows})
    [best_row] = [row for row in rows if row["lookahead"] == best]
    return {
        "draft": score.draft,
        "temperature": score.temperature,
        "rule": rule_name(score.temperature),
        "cost_ratio": times.cost_ratio,
        "best_lookahead": best,
        "predicted": best_row["predicted"],
        "break_even_alpha": best_row["break_even_alpha"],
        "lookahead": rows,
    }


def predicted_record(score: DraftScore, lookahead: int, alpha: float, times: StepTimes) -> Record:
    """Speed-up at one lookahead by measured terms, and by the formulas that assume independent accepts."""
    counts = score.pooled(lookahead)
    full_rate = counts.fully_accepted_rounds / counts.rounds
    return {
        "lookahead": lookahead,
        "predicted": predicted_speedup(tau(counts), full_rate, lookahead, times),
        "iid": iid_speedup(alpha, lookahead, times),
        "leviathan": iid_speedup(alpha, lookahead, ideal_times(times.cost_ratio, lookahead)),
        "break_even_alpha": break_even_alpha(lookahead, times),
    }


def live_record(
    draft: str, answers: Sequence[LiveAnswer], agreement: Agreement, predicted: float, resampling: Resampling
) -> Record:
    """Measured speed-up of the live loop, and whether it did what the replay says."""
    rounds = [one for answer in answers for one in answer.speculative.rounds]
    return {
        "draft": draft,
        "temperature": 0.0,
        "lookahead": answers[0].lookahead,
        "prompts": len(answers),
        "speedup": estimate_record(whole_speedup(answers, resampling)),
        "decoding_speedup": estimate_record(decoding_speedup(answers, resampling)),
        "predicted_decoding_speedup": predicted,
        "plain": spent_record([answer.plain for answer in answers]),
        "speculative": {
            **spent_record([answer.speculative for answer in answers]),
            "draft_s": sum(one.draft_s for one in rounds),
            "verify_s": sum(one.verify_s for one in rounds),
        },
        "agreement": {
            "exact": agreement.is_exact,
            "same_text": agreement.same_text,
            "same_as_recorded": agreement.same_as_recorded,
            "same_counts": agreement.same_counts,
            "loop": counts_record(agreement.loop),
            "replay": counts_record(agreement.replay),
        },
    }


def spent_record(texts: Sequence[Decoded]) -> Record:
    """Time spent on some texts."""
    num_tokens = sum(len(text.token_ids) for text in texts)
    decode_s = sum(text.decode_s for text in texts)
    return {
        "tokens": num_tokens,
        "prefill_s": sum(text.prefill_s for text in texts),
        "decode_s": decode_s,
        "ms_per_token": 1000 * decode_s / num_tokens,
    }


def counts_record(counts: Counts) -> Record:
    """The counts that loop and replay must share."""
    return {"rounds": counts.rounds, "accepted": counts.accepted_tokens, "proposed": counts.proposed_tokens}


def estimate_record(estimate: Estimate) -> Record:
    """A value and its interval, null where there is none."""
    return {"value": estimate.value, "interval": estimate.interval}


def step_record(time: StepTime) -> Record:
    """One kind of step, in milliseconds."""
    return {
        "median_ms": 1000 * time.median_s,
        "interval_ms": None if time.interval_s is None else [1000 * bound for bound in time.interval_s],
        "p10_ms": 1000 * time.p10_s,
        "p90_ms": 1000 * time.p90_s,
    }

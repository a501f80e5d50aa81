"""The measured sections of a scorecard: acceptance by replay, step times and their promise, policies, live decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.acceptance.counts import Counts
from eval.acceptance.draft_scores import DraftScore, ReplayedDraft
from eval.acceptance.estimates import Resampling
from eval.acceptance.replay import replay_counts, replay_pair, rule_name
from eval.answers.traces import Trace
from eval.config import EvalConfig
from eval.decoding.sampling import Sampling
from eval.latency.floor import byte_ratio
from eval.latency.measure import Latency, measure_latency, timing_ticks
from eval.latency.steps import Setting
from eval.models.loading import stop_token_ids
from eval.policies.lookup_alone import Texts, best_lookup
from eval.policies.tune import Tuned
from eval.records.acceptance import AcceptanceRow
from eval.records.differences import DifferenceRow
from eval.records.scorecard_speeds import Live, PolicyRow, SpeedupRow, StoppingRow
from eval.records.steps import ScoredLatency
from eval.rounds.round_trace import Run
from eval.scorecard.acceptance_record import acceptance_row, difference_row
from eval.scorecard.answers import Answers, context_of
from eval.scorecard.live import LiveAnswer, compare_with_replay, decode_live, live_run
from eval.scorecard.live_record import live_record, ways_of
from eval.scorecard.loaded_models import Pair, Replayed
from eval.scorecard.policies import TunedDraft, policy_rows, recorded_along, stopping_rows, tune_draft
from eval.scorecard.record import scored_latency, speedup_row


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was found: sections of the scorecard, and what stands beside it.

    Attributes:
        live: Of each temperature; the one that the verdict is about first.
        run: What was decoded for that with the draft alone.
        tuned: What was tuned at each temperature; empty where that was not asked for.
    """

    acceptance: tuple[AcceptanceRow, ...]
    differences: tuple[DifferenceRow, ...]
    latency: ScoredLatency
    speedup: tuple[SpeedupRow, ...]
    policies: tuple[PolicyRow, ...]
    stopping: tuple[StoppingRow, ...]
    live: tuple[Live, ...]
    run: Run
    tuned: Mapping[float, TunedDraft]


@dataclass(frozen=True)
class Scored:
    """A draft along the answers of one temperature: under the rule a scorecard leads with first, then the others."""

    replayed: ReplayedDraft
    by_rule: Sequence[DraftScore]

    @property
    def leading(self) -> DraftScore:
        """Under the rule a scorecard leads with."""
        return self.by_rule[0]


def measure(replayed: Replayed, config: EvalConfig, resampling: Resampling) -> Measured:
    """Count what was replayed, time all steps, tune policies, and decode live.

    Args:
        replayed: The models, answers to score and to tune on, and what drafts do along them.
        config: How to score.
        resampling: How intervals are made.
    """
    pair, answers = replayed.pair, replayed.answers
    lookaheads = config.lookaheads
    scored = [Scored(draft, draft.scores(lookaheads)) for drafts in replayed.along.values() for draft in drafts]
    latency = timed(pair, answers, config, resampling)
    forecasts = [forecast(pair, score.leading, latency) for score in scored]
    steps = latency.step_times(pair.primary)
    tuned = tune_draft(replayed.tuning, replayed.along_tuning, steps, config)
    ours = {score.leading.temperature: score for score in scored if score.leading.draft == pair.primary}
    promised = {row.temperature: row for row in forecasts if row.draft == pair.primary}
    most = config.max_new_tokens
    along = {t: recorded_along(score.replayed, answers[t], max_new_tokens=most) for t, score in ours.items()}
    looked_up = {t: best_lookup(texts_of(group), steps, max_new_tokens=most) for t, group in answers.items()}
    lives = [
        measure_live(
            pair,
            answers[temperature],
            score.leading,
            promised=promised[temperature],
            policy=tuned[temperature].policy if temperature in tuned else None,
            lookup=looked_up[temperature][0],
            config=config,
            resampling=resampling,
        )
        for temperature, score in ours.items()
    ]
    lives.sort(key=lambda each: each[0].temperature != 0)  # stable: greedy first, else as asked
    return Measured(
        acceptance=tuple(
            acceptance_row(score.by_rule, score.replayed.parted_scores(lookaheads), resampling) for score in scored
        ),
        differences=differences(scored, pair.primary, resampling),
        latency=scored_latency(latency),
        speedup=tuple(forecasts),
        policies=policy_rows(tuned, along, looked_up, steps),
        stopping=stopping_rows(tuned, along, steps),
        live=tuple(live for live, _ in lives),
        run=lives[0][1],
        tuned=tuned,
    )


def texts_of(answers: Answers) -> Texts:
    """Prompts and answers, as token ids."""
    return [(trace.prompt_ids, trace.answer_ids) for trace in answers.traces]


def timed(pair: Pair, answers: Mapping[float, Answers], config: EvalConfig, resampling: Resampling) -> Latency:
    """Steps of all models at batch 1, in the middle of a typical text."""
    return measure_latency(
        pair.target,
        pair.drafts,
        Setting(context_of(answers)),
        lookaheads=config.lookaheads,
        repetitions=timing_ticks(config.latency_repeats),
        resampling=resampling,
    )


def differences(scored: Sequence[Scored], primary: str, resampling: Resampling) -> tuple[DifferenceRow, ...]:
    """How the last draft differs from each other."""
    return tuple(
        difference_row(score.by_rule, other.by_rule, resampling)
        for score in scored
        for other in scored
        if score.leading.draft == primary != other.leading.draft
        and score.leading.temperature == other.leading.temperature
    )


def forecast(pair: Pair, score: DraftScore, latency: Latency) -> SpeedupRow:
    """What the acceptance of a draft is worth, by its step times and by the bytes that steps read."""
    ratio = byte_ratio(pair.target, pair.drafts[score.draft], context=latency.context)
    return speedup_row(score, latency.step_times(score.draft), ratio)


def measure_live(
    pair: Pair,
    answers: Answers,
    score: DraftScore,
    *,
    promised: SpeedupRow,
    policy: Tuned | None,
    lookup: int,
    config: EvalConfig,
    resampling: Resampling,
) -> tuple[Live, Run]:
    """Decode some prompts by every way: draft and text alone, each where it promises most, and both by the policy."""
    lookahead, sampling = promised.best_lookahead, Sampling.of(score.temperature, config.sampling)
    ways = ways_of(pair.drafts[score.draft], lookahead, lookup, policy)
    chosen = answers.first_turns()[: config.live_prompts]
    live = decode_live(
        pair.target,
        ways,
        [trace for _, trace in chosen],
        max_new_tokens=config.max_new_tokens,
        stop_ids=stop_token_ids(pair.target),
        sampling=sampling,
        seed=resampling.seed,
    )
    recorded = [score.answers[index].counts[lookahead] for index, _ in chosen]
    due = recorded if sampling.is_greedy else replayed_texts(pair, live, [trace for _, trace in chosen], sampling)
    agreement = compare_with_replay(live, due, is_greedy=sampling.is_greedy)
    how = {"temperature": sampling.temperature, "predicted": promised.predicted, "resampling": resampling}
    record = live_record(score.draft, live, ways, agreement, **how)
    run = live_run(live, max_new_tokens=config.max_new_tokens, sampling=sampling, seed=resampling.seed)
    return record, run


def replayed_texts(pair: Pair, live: Sequence[LiveAnswer], asked: Sequence[Trace], sampling: Sampling) -> list[Counts]:
    """What the replay expects of the very texts that were sampled with the draft, at the lookahead they had."""
    draft, expected = pair.drafts[pair.primary], []
    for answer, trace in zip(live, asked, strict=True):
        ids = answer.speculative.token_ids
        replayed = replay_pair(pair.target, draft, trace.prompt_ids, ids, sampling=sampling)
        accept_T = replayed.rules[rule_name(sampling.temperature)].accept
        expected.append(replay_counts(accept_T, lookahead=answer.lookahead))
    return expected

"""The measured sections of a scorecard: acceptance by replay, step times and their promise, policies, live decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.acceptance.estimates import Resampling
from eval.config import EvalConfig
from eval.latency.floor import byte_ratio
from eval.latency.measure import Latency, measure_latency, timing_ticks
from eval.latency.steps import Setting
from eval.models.loading import stop_token_ids
from eval.policies.lookup_alone import Texts, best_lookup
from eval.policies.tune import Tuned
from eval.records.acceptance import AcceptanceRow
from eval.records.differences import DifferenceRow
from eval.records.scorecard_speeds import Live, PolicyRow, SpeedupRow
from eval.records.steps import ScoredLatency
from eval.rounds.round_trace import Run
from eval.scorecard.acceptance_record import acceptance_row, difference_row
from eval.scorecard.answers import Answers, context_of
from eval.scorecard.draft_scores import DraftScore, ReplayedDraft
from eval.scorecard.live import compare_with_replay, decode_live, live_run
from eval.scorecard.live_record import live_record, ways_of
from eval.scorecard.loaded_models import Pair, replay_drafts
from eval.scorecard.policies import policy_rows, tune_policies
from eval.scorecard.record import scored_latency, speedup_row


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was found: sections of the scorecard, and what stands beside it.

    Attributes:
        run: What was decoded live with the draft alone; None if nothing was.
        tuned: The policy of each temperature; empty where none was asked for.
    """

    acceptance: tuple[AcceptanceRow, ...]
    differences: tuple[DifferenceRow, ...]
    latency: ScoredLatency
    speedup: tuple[SpeedupRow, ...]
    policies: tuple[PolicyRow, ...]
    live: Live | None
    run: Run | None
    tuned: Mapping[float, Tuned]


@dataclass(frozen=True)
class Scored:
    """A draft along the answers of one temperature: under the rule a scorecard leads with first, then the others."""

    replayed: ReplayedDraft
    by_rule: Sequence[DraftScore]

    @property
    def leading(self) -> DraftScore:
        """Under the rule a scorecard leads with."""
        return self.by_rule[0]

    def is_of(self, draft: str, temperature: float) -> bool:
        """Whether it is this draft's at this temperature."""
        return (self.leading.draft, self.leading.temperature) == (draft, temperature)


def measure(
    pair: Pair,
    answers: Mapping[float, Answers],
    tuning: Mapping[float, Answers],
    config: EvalConfig,
    resampling: Resampling,
) -> Measured:
    """Replay every draft, time all steps, tune policies, and decode live.

    Args:
        pair: The models.
        answers: To score on, by temperature.
        tuning: To tune policies on, by temperature; empty for none.
        config: How to score.
        resampling: How intervals are made.
    """
    lookaheads = config.lookaheads
    scored = [
        Scored(draft, draft.scores(lookaheads))
        for temperature in answers
        for draft in replay_drafts(pair, answers[temperature], temperature=temperature)
    ]
    latency = timed(pair, answers, config, resampling)
    forecasts = [forecast(pair, score.leading, latency) for score in scored]
    steps = latency.step_times(pair.primary)
    tuned = tune_policies(pair, tuning, steps, max_new_tokens=config.max_new_tokens)
    along = {score.leading.temperature: score.replayed for score in scored if score.leading.draft == pair.primary}
    looked_up = {
        temperature: best_lookup(texts_of(answers[temperature]), steps, max_new_tokens=config.max_new_tokens)
        for temperature in answers
        if temperature == 0 or temperature in tuned
    }
    live = run = None
    if 0.0 in answers:
        [index] = [index for index, score in enumerate(scored) if score.is_of(pair.primary, 0.0)]
        live, run = measure_live(
            pair,
            answers[0.0],
            scored[index].leading,
            promised=forecasts[index],
            policy=tuned.get(0.0),
            lookup=looked_up[0.0][0],
            config=config,
            resampling=resampling,
        )
    return Measured(
        acceptance=tuple(
            acceptance_row(score.by_rule, score.replayed.parted_scores(lookaheads), resampling) for score in scored
        ),
        differences=differences(scored, pair.primary, resampling),
        latency=scored_latency(latency),
        speedup=tuple(forecasts),
        policies=policy_rows(tuned, along, answers, looked_up, steps, max_new_tokens=config.max_new_tokens),
        live=live,
        run=run,
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
    lookahead = promised.best_lookahead
    ways = ways_of(pair.drafts[score.draft], lookahead, lookup, policy)
    chosen = answers.first_turns()[: config.live_prompts]
    live = decode_live(
        pair.target,
        ways,
        [trace for _, trace in chosen],
        max_new_tokens=config.max_new_tokens,
        stop_ids=stop_token_ids(pair.target),
        seed=resampling.seed,
    )
    agreement = compare_with_replay(live, [score.answers[index].counts[lookahead] for index, _ in chosen])
    record = live_record(score.draft, live, ways, agreement, predicted=promised.predicted, resampling=resampling)
    return record, live_run(live, max_new_tokens=config.max_new_tokens)

"""What a scorecard says in words: verdict, warnings, and the headline a run ends with. Pure text from the record."""

from architectures.pages.blocks import Judgement
from eval.acceptance.estimates import Estimate
from eval.acceptance.intervals import least_units
from eval.pages.doubts import DISTRUSTED, NOT_BELIEVED, doubt_words, is_distrusted
from eval.predictions.ranking import predicted_interval
from eval.records.origin import ScoredModel
from eval.records.scorecard import Scorecard
from eval.records.scorecard_speeds import POLICY, Live, SpeedupRow, WayRow
from eval.records.steps import StepTime
from eval.records.values import HasInterval

DISTURBED = 1.2  # of its timed step; a token of the target alone that takes longer met other work (quiet: up to 1.04)
LOOP_MS = 1.0  # a token, of what is no step; of tiny models that is much


def verdict(scorecard: Scorecard) -> str:
    """One sentence: is decoding faster with the last draft, and by how much."""
    live = scorecard.live
    where = f"on this {scorecard.machine}"
    if is_unbelievable(scorecard):
        measured = "" if live is None else f" Measured meanwhile: {with_interval(live.main_speedup, times=True)}."
        return f"{DISTRUSTED}, {where}.{measured}"
    if live is None:
        forecast = scorecard.main_forecast
        return (
            f"Not measured: the live loop decodes greedily and temperature 0 was not scored. Predicted at batch 1 and "
            f"temperature {forecast.temperature:g}: {prediction(scorecard, forecast)} at lookahead "
            f"{forecast.best_lookahead}, {where}."
        )
    return measured_verdict(scorecard, live, f"{main_way_words(live)}, {where}")


def is_unbelievable(scorecard: Scorecard) -> bool:
    """Whether step times, or the tokens of live decoding beside them, say more of the machine than of the models."""
    live, step = scorecard.live, scorecard.latency.target
    disturbed = live is not None and live.plain.ms_per_token > NOT_BELIEVED * step.median_ms + LOOP_MS
    return disturbed or is_distrusted(scorecard.latency.evidence)


def measured_verdict(scorecard: Scorecard, live: Live, how: str) -> str:
    """What a measured speed-up decides."""
    told = judgement(live.main_speedup)
    speed, interval = with_interval(live.main_speedup, times=True), live.main_speedup.interval
    why = "" if told != "not decided" else "; the interval holds 1"
    setting = f"at batch 1, {scorecard.settings.sampling.words_at(live.temperature)}, {how}"
    if interval is None:
        why = f"; {too_few_live(scorecard, live)}"
    return f"{told[0].upper()}{told[1:]}: {speed} the speed of the target alone {setting}{why}."


def judgement(speedup: HasInterval) -> Judgement:
    """What a measured speed-up decides: a direction only where the whole interval lies there."""
    if speedup.interval is None:
        return "not decided"
    low, high = speedup.interval
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "not decided"


def judged(scorecard: Scorecard, speedup: HasInterval) -> Judgement:
    """The same of a speed-up of a scorecard: nothing is decided where its step times are not to be believed."""
    return "not decided" if is_unbelievable(scorecard) else judgement(speedup)


def main_way_words(live: Live) -> str:
    """The way the verdict is about: the draft with its policy, or the draft alone where none was tuned."""
    main = live.way(POLICY)
    return f"lookahead {live.lookahead}" if main is None else way_words(main)


def way_words(row: WayRow) -> str:
    """A way of live decoding, with how many tokens are proposed."""
    return f"{row.way}, lookahead {row.lookahead}"


def decision(speedup: Estimate, *, too_few: str) -> str:
    """What the interval of a measured speed-up decides: which way, and whether by how much.

    Args:
        speedup: With its interval.
        too_few: Why there is none, where there is none.
    """
    told, why = judgement(speedup), doubt(speedup, too_few=too_few)
    which_way = f"{told[0].upper()}{told[1:]}"
    if told == "not decided":
        return f"{which_way}, because {why}"
    return f"{which_way}, but by how much is not decided, because {why}" if why else which_way


def doubt(speedup: Estimate, *, too_few: str) -> str:
    """Why it is not decided which way a speed-up goes, or how far; empty where both are."""
    if speedup.interval is None:
        return too_few
    low, high = speedup.interval
    if judgement(speedup) == "not decided":
        return "the interval holds 1"
    return "the interval is wider than the effect" if high - low > abs(speedup.value - 1) else ""


def too_few_words(count: int, singular: str, plural: str, least: int) -> str:
    """That so few units give no interval, and how many would."""
    facts = f"one {singular} gives" if count == 1 else f"{count} {plural} give"
    return f"{facts} no interval: {least} are the least"


def too_few_live(scorecard: Scorecard, live: Live) -> str:
    """Why a live measurement has no interval."""
    least = least_units(scorecard.settings.confidence)
    return too_few_words(live.prompts, "prompt", "prompts", least)


def find_warnings(scorecard: Scorecard) -> list[str]:
    """What a reader must know before believing the numbers."""
    warnings = []
    is_exact_dtype = scorecard.settings.dtype == "float32"
    live = scorecard.live
    warnings += [
        f"LOOP AND REPLAY DISAGREE IN FLOAT32, WHERE THEY MUST NOT: {agreement_sentence(each)} Do not trust this "
        "scorecard; report it."
        if is_exact_dtype
        else f"Loop and replay differ, as rounding in {scorecard.settings.dtype} makes them: {agreement_sentence(each)}"
        for each in scorecard.lives
        if not each.agreement.exact
    ]
    changed = sum(row.target_changed_tokens for row in scorecard.acceptance)
    if changed and is_exact_dtype:
        warnings.append(
            f"In float32 the target, reading its own answers, would choose another token at {changed} places (summed "
            "over drafts): near-ties, or answers that were not written by this target."
        )
    warnings += held_words(scorecard.target)
    if not scorecard.latency.settled:
        warnings.append(
            f"Step times had not settled after {scorecard.latency.warm_up_repeats} warm-up repetitions: the "
            "machine was doing other work. Measure again when it is quiet."
        )
    warnings += doubt_words(scorecard.latency.evidence)
    if live is not None:
        warnings += disturbed_words(live, scorecard.latency.target)
    if live is not None and live.temperature == 0 and is_exact_dtype:
        warnings += [
            f"IN FLOAT32 {live.prompts - row.same_text} TEXTS OF {row.way.upper()} ARE NOT THOSE OF PLAIN "
            "DECODING: near-ties, or a fault. `widedraft verify` tells which."
            for row in live.ways
            if row.same_text < live.prompts
        ]
    least = least_units(scorecard.settings.confidence)
    if scorecard.prompts.scored < least:
        few = too_few_words(scorecard.prompts.scored, "scored prompt", "scored prompts", least)
        warnings.append(f"{few[0].upper()}{few[1:]}.")
    return warnings


def held_words(target: ScoredModel) -> list[str]:
    """That the draft was judged against another model than the target's folder has, or at another one's speed."""
    packed = (
        f"The target's linear layers were packed into {target.bits} bits a weight: the draft is judged against that "
        "model, and not against the target as it is published."
    )
    placed = {
        "layers": "Every step of the target read all of its weights from the disk: step times, promises and measured "
        "speeds are those of such a target, and of none that is whole in memory. Acceptance is the same.",
        "spread": "The target was spread over devices, memory and disk: step times, promises and measured speeds "
        "are those of this machine's way between them. Acceptance is the same.",
    }
    return [
        *([] if target.bits is None else [packed]),
        *([placed[target.placement]] if target.placement in placed else []),
    ]


def disturbed_words(live: Live, step: StepTime) -> list[str]:
    """That the target alone took much longer over a token than its own step was timed: other work met live decoding."""
    took, timed = live.plain.ms_per_token, step.median_ms
    if took <= DISTURBED * timed + LOOP_MS:
        return []
    told = (
        f"The target alone took {took:.1f} ms a token in live decoding, and its step {timed:.1f} ms when that was "
        "timed: the machine did other work meanwhile, and measured speeds are worth little. Measure again when it is "
        "quiet: delete the folder of this scorecard and run the command again."
    )
    return [told]


def agreement_sentence(live: Live) -> str:
    """Whether loop, replay and plain decoding agree, in numbers."""
    agreement, total = live.agreement, live.prompts
    loop, replay = (
        f"{counts.rounds:g} rounds and {counts.accepted:g} accepted" for counts in (agreement.loop, agreement.replay)
    )
    if agreement.p_value is not None:
        return (
            f"Of {total} sampled texts, the loop counted {loop}; the replay of these very texts expects "
            f"{agreement.replay.rounds:.1f} rounds and {agreement.replay.accepted:.1f} accepted (t test of the rounds "
            f"over prompts: p = {agreement.p_value:.2g})."
        )
    return (
        f"Of {total} prompts, {agreement.same_text} have the text of plain decoding, {agreement.same_as_recorded} the "
        f"recorded answer and {agreement.same_counts} the replay's counts; the loop counted {loop}, the replay "
        f"{replay}."
    )


def prediction(scorecard: Scorecard, forecast: SpeedupRow) -> str:
    """The speed-up that a section of `speedup` predicts, with the interval that prompts and step times leave it."""
    row = scorecard.row(forecast.draft, forecast.temperature)
    interval = predicted_interval(row, forecast.best_lookahead, scorecard.latency, scorecard.settings.resampling)
    return figure_words(forecast.predicted, interval, times=True)


def with_interval(estimate: HasInterval, *, times: bool = False) -> str:
    """A value with its interval: 0.512 [0.480, 0.544], or 1.12x [1.05, 1.20]; "none" where nothing was counted."""
    return figure_words(estimate.value, estimate.interval, times=times)


def figure_words(value: float | None, interval: tuple[float, float] | None, *, times: bool = False) -> str:
    """The same of a value and its interval."""
    if value is None:
        return "none"
    digits, unit = (2, "x") if times else (3, "")
    shown = f"{value:.{digits}f}{unit}"
    if interval is None:
        return shown
    low, high = interval
    return f"{shown} [{low:.{digits}f}, {high:.{digits}f}]"


def speedup_words(speedup: float | None) -> str:
    """A speed-up of a formula."""
    return "unknown" if speedup is None else f"{speedup:.3f}"


def alpha_words(alpha: float | None) -> str:
    return "none: no alpha pays" if alpha is None else f"{alpha:.3f}"

"""What to do next, in one line, from what was measured: use a draft, measure more, train on, or leave it."""

import math
from collections.abc import Sequence

from eval.acceptance.intervals import least_units
from eval.pages.verdict import disturbed_words, is_unbelievable, judged, judgement, prediction, with_interval
from eval.records.scorecard_speeds import LOOKUP, POLICY, Live, OverLookup
from eval.report_inputs.drafts import ScoredDraft, measured, primaries, speed_of
from eval.report_opening.conditions import may_be_as_fast
from eval.report_opening.sentence import fastest, subject_words

DRAFT = "draft"  # the way of a draft alone, in what is told over n-gram lookup
MOST_MORE = 8  # times as many prompts as were decoded: where more would be needed, a better draft is wanted
SPARE = 1.1  # prompts above those that an interval of the same spread needs


def next_step(drafts: Sequence[ScoredDraft]) -> str:
    """One line: what the reader of this report should do."""
    named, live = primaries(drafts), measured(drafts)
    if not live:
        return "Score at temperature 0 too (eval.temperatures): that is where decoding is measured."
    best = fastest(live)
    assert best.live is not None, "it was measured"
    decided = judged(best.card.record, speed_of(best))
    if decided == "faster":
        return use_words(best, named, live)
    if speed_of(best).interval is None:
        least = least_units(best.card.record.settings.confidence)
        return f"Decode more prompts: eval.live_prompts of {least} or more give an interval."
    if decided == "not decided" and was_disturbed(best):
        return "Measure again on a quiet machine: other work ran beside this measurement."
    if (num_prompts := deciding_prompts(best)) is not None:
        return (
            f"Decode more prompts: some {num_prompts} in place of {best.live.prompts} (eval.live_prompts) would decide "
            f"it, if the speed stays what it is."
        )
    return better_draft_words(named, best)


def use_words(best: ScoredDraft, named: Sequence[ScoredDraft], live: Sequence[ScoredDraft]) -> str:
    """Which way to decode from now on, where the best draft is faster than the target alone."""
    assert best.live is not None, "it was measured"
    use = f"Use {subject_words(best, named)} at lookahead {main_lookahead(best.live)}"
    over = over_lookup(best.live)
    if over is None or over.speedup.interval is None:
        return f"{use}{close_words(best, live)}."
    ratio = with_interval(over.speedup, times=True)
    beside = judgement(over.speedup)
    if beside == "faster":
        return f"{use}: it is {ratio} as fast as n-gram lookup, which needs no draft{close_words(best, live)}."
    if beside == "slower":
        return f"Use n-gram lookup, which needs no draft: {subject_words(best, named)} is {ratio} as fast as it."
    return f"{use}, or n-gram lookup, which needs no draft: which of them is faster is not decided, {ratio}."


def close_words(best: ScoredDraft, live: Sequence[ScoredDraft]) -> str:
    """How to learn which of several is the fastest, where that is not decided."""
    close = [draft for draft in live if draft is not best and may_be_as_fast(speed_of(draft), speed_of(best))]
    return "; `widedraft speed` with all of them in the same turns tells which is the fastest" if close else ""


def better_draft_words(named: Sequence[ScoredDraft], best: ScoredDraft) -> str:
    """What would make a draft pay that does not; and what pays meanwhile."""
    hopeful = max(named, key=lambda draft: draft.main_forecast.predicted)
    forecast, name = hopeful.main_forecast, subject_words(hopeful, named)
    alpha, needed = hopeful.row(forecast.temperature).alpha.value, forecast.break_even_alpha
    if needed is None:
        told = (
            "Nothing pays here: at these step times even a draft whose every token is kept is no faster. Cut a smaller "
            "one, or try a machine on which verifying costs less."
        )
    elif alpha < needed:
        told = (
            f"Train {name} {on_words(hopeful)}: it pays from an acceptance (alpha) of {needed:.2f} on, and has "
            f"{alpha:.2f}."
        )
    else:
        promised = prediction(hopeful.card.record, forecast)
        told = f"See where a round's time goes, below: by acceptance and step times {name} should decode at {promised}."
    return f"{lookup_words(best)}{told}"


def on_words(draft: ScoredDraft) -> str:
    """What to train it on: longer is no use where its best checkpoint is not the last."""
    for curve in draft.card.curves or ():
        if curve.temperature == draft.main_forecast.temperature and curve.best != curve.points[-1].checkpoint:
            return "on more answers, not longer"
    return "longer or on more answers"


def lookup_words(best: ScoredDraft) -> str:
    """That n-gram lookup pays where no draft does; empty where it does not, or was not measured."""
    row = None if best.live is None else best.live.way(LOOKUP)
    if row is None or judgement(row.speedup) != "faster":
        return ""
    return f"Use n-gram lookup for now: {with_interval(row.speedup, times=True)}, without a draft. "


def deciding_prompts(best: ScoredDraft) -> int | None:
    """How many prompts would decide that the best draft is faster, were it as fast on them; None if far too many."""
    assert best.live is not None, "it was measured"
    speed, prompts = speed_of(best), best.live.prompts
    if judgement(speed) != "not decided" or speed.interval is None or speed.value <= 1:
        return None
    needed = math.ceil(SPARE * prompts * ((speed.value - speed.interval[0]) / (speed.value - 1)) ** 2)
    return needed if needed <= MOST_MORE * prompts else None


def was_disturbed(draft: ScoredDraft) -> bool:
    """Whether other work ran beside a measurement."""
    record = draft.card.record
    disturbed = [] if record.live is None else disturbed_words(record.live, record.latency.target)
    return bool(disturbed) or not record.latency.settled or is_unbelievable(record)


def main_lookahead(live: Live) -> int:
    """Of the way the verdict is about."""
    policy = live.way(POLICY)
    return live.lookahead if policy is None else policy.lookahead


def over_lookup(live: Live) -> OverLookup | None:
    """That way over n-gram lookup; None where that was not measured."""
    main = DRAFT if live.way(POLICY) is None else POLICY
    return next((row for row in live.over_lookup if row.way == main), None)

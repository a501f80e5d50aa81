"""The sentence a report is read for: the verdict and the number. And below it, of what that is true."""

from collections import Counter
from collections.abc import Sequence

from architectures.pages.blocks import Judgement
from architectures.pages.counts import number_of
from eval.pages.verdict import (
    doubt,
    is_unbelievable,
    judged,
    main_way_words,
    prediction,
    too_few_live,
    with_interval,
)
from eval.records.scorecard_speeds import POLICY
from eval.report_inputs.drafts import ScoredDraft, measured, primaries, speed_of
from eval.report_opening.conditions import standing

OF_TARGET = "the speed of the target alone"


def opening_judgement(drafts: Sequence[ScoredDraft]) -> Judgement:
    """What is decided of the draft, or of the one that came out fastest."""
    live = measured(drafts)
    return judged_speed(fastest(live)) if live else "not measured"


def opening_sentence(drafts: Sequence[ScoredDraft]) -> str:
    """Whether decoding is faster with the draft, or with any of several, and how fast it is with the best."""
    named, live = primaries(drafts), measured(drafts)
    if not live:
        return predicted_sentence(named)
    best = fastest(live)
    is_fastest = ", the fastest," if standing(best, live) is None else ", perhaps the fastest,"
    subject = subject_words(best, named) + (is_fastest if len(live) > 1 else "")
    return f"{head(live)}: {subject} decodes at {with_interval(speed_of(best), times=True)} {OF_TARGET}."


def predicted_sentence(named: Sequence[ScoredDraft]) -> str:
    """What is promised where nothing was measured."""
    best = max(named, key=lambda draft: draft.main_forecast.predicted)
    head = "Not measured" if len(named) == 1 else f"None of {len(named)} drafts was measured"
    temperature = best.main_forecast.temperature
    return (
        f"{head}: {subject_words(best, named)} is predicted to decode at "
        f"{prediction(best.card.record, best.main_forecast)} {OF_TARGET}, at temperature {temperature:g}."
    )


def head(live: Sequence[ScoredDraft]) -> str:
    """How many of the measured drafts are what."""
    if len(live) == 1:
        told = judged_speed(live[0])
        return f"{told[0].upper()}{told[1:]}"
    counted, total = Counter(map(judged_speed, live)), len(live)
    for which in ("faster", "slower"):
        if counted[which] == total:
            return f"All {total} drafts are {which}"
    if not counted["faster"]:
        return f"None of {total} drafts is shown to be faster"
    return f"{counted['faster']} of {total} drafts {'is' if counted['faster'] == 1 else 'are'} faster"


def judged_speed(draft: ScoredDraft) -> Judgement:
    """What the measured speed of a draft decides."""
    return judged(draft.card.record, speed_of(draft))


def subject_words(draft: ScoredDraft, named: Sequence[ScoredDraft]) -> str:
    """A draft by its name among several, and whether it was decoded with its policy."""
    name = "the draft" if len(named) == 1 else draft.label
    has_policy = draft.live is not None and draft.live.way(POLICY) is not None
    return f"{name} with its policy" if has_policy else name


def fastest(live: Sequence[ScoredDraft]) -> ScoredDraft:
    """The draft that was measured to be the fastest, whether or not that is decided."""
    return max(live, key=lambda draft: speed_of(draft).value)


def how_sentences(drafts: Sequence[ScoredDraft], *, batches: str) -> list[str]:
    """Of what the sentence is true: where and how it was measured, and what of it is not decided.

    Args:
        drafts: Of the report.
        batches: At which batches the best draft is predicted to pay; empty where no steps are known.
    """
    named, live = primaries(drafts), measured(drafts)
    if not live:
        return ["Decoding is measured at temperature 0 alone, which was not scored."]
    best = fastest(live)
    told = [measured_words(best, batches)]
    if undecided := doubt_words(best, named):
        told.append(undecided)
    if (reason := standing(best, live)) is not None:
        told.append(f"That {best.label} is the fastest is not decided: {reason}.")
    if missing := [draft.label for draft in named if draft not in live]:
        told.append(f"Not measured: {', '.join(missing)}.")
    return told


def measured_words(best: ScoredDraft, batches: str) -> str:
    """How the speed was measured."""
    live, record = best.live, best.card.record
    assert live is not None, "it was measured"
    prompts = number_of(live.prompts, "prompt")
    return (
        f"Measured on {prompts}, reading them included, at batch 1, temperature {live.temperature:g}, "
        f"{main_way_words(live)}, on a {record.machine}{batches}."
    )


def doubt_words(best: ScoredDraft, named: Sequence[ScoredDraft]) -> str:
    """Why it is not decided whether the best is faster, or by how much; empty where both are."""
    assert best.live is not None, "it was measured"
    why = doubt(speed_of(best), too_few=too_few_live(best.card.record, best.live))
    if is_unbelievable(best.card.record):
        why = "step times are not to be believed (see the warnings)"
    if not why:
        return ""
    is_open = judged_speed(best) == "not decided"
    what = f"Whether {subject_words(best, named)} is faster" if is_open else "By how much"
    return f"{what} is not decided: {why}."

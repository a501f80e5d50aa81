"""Whether step times are to be believed: three findings, each from numbers of a record alone. Pure.

Threads that spin while they wait for each other stand still when another program has a core: a step then takes tens of
milliseconds in place of one, and a way of decoding that has fewer steps is "faster" by a factor which says nothing of
either model. Such times are told by what a step must take, and by what it takes with fewer threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eval.records.evidence import ModelStep, StepEvidence, ms_words, threads_words

BEYOND_LEAST = 5.0  # times what bytes and FLOPs take on one thread; steps of docs/latency.md take 1 to 3 times that
LAYER_MS, STEP_MS = 2.0, 5.0  # besides: Python and the start of every operation, ten times what was seen
FASTER_WITH_FEWER = 1.25  # times; two equal means of six visits rarely differ by so much
NOT_BELIEVED = 2.0  # times from which on the number of threads decides more than the draft
MANY_REFUSED = 0.1  # of the processor time asked for
BUSY_CORES = 0.5  # of others: they read the same memory
DISTRUSTED = "Not decided, because step times are not to be believed (see the warnings)"


@dataclass(frozen=True)
class Doubt:
    """A finding.

    Attributes:
        words: What was found, and what to do.
        is_grave: Whether no speed is to be told of such steps.
    """

    words: str
    is_grave: bool


def doubts(evidence: StepEvidence | None) -> list[Doubt]:
    """Every finding, the grave ones first; none where nothing was measured to hold step times against."""
    if evidence is None:
        return []
    found = [*faster_with_fewer(evidence), *far_from_least(evidence.steps), *under_load(evidence)]
    return sorted(found, key=lambda doubt: not doubt.is_grave)


def faster_with_fewer(evidence: StepEvidence) -> list[Doubt]:
    """That the target's step takes longer with these threads than with fewer."""
    taken = {step.threads: step.ms for step in evidence.by_threads}
    own = taken.get(evidence.threads)
    fewer = {threads: ms for threads, ms in taken.items() if threads < evidence.threads}
    if own is None or not fewer:
        return []
    best = min(fewer, key=lambda threads: fewer[threads])
    if own < FASTER_WITH_FEWER * fewer[best]:
        return []
    told = (
        f"The target's step takes {ms_words(own)} with {threads_words(evidence.threads)} and {ms_words(fewer[best])} "
        f"with {threads_words(best)}: threads wait for each other, or for cores that other programs have, longer than "
        f"they compute. Measure with num_threads={best}, or num_threads=auto, which picks the fastest."
    )
    return [Doubt(told, own >= NOT_BELIEVED * fewer[best])]


def far_from_least(steps: Sequence[ModelStep]) -> list[Doubt]:
    """That a step takes far longer than its bytes and FLOPs, and the start of its operations, can take here."""
    found = []
    for step in steps:
        if step.least_ms is None:
            continue
        most = BEYOND_LEAST * step.least_ms + LAYER_MS * step.layers + STEP_MS
        if step.ms > most:
            told = (
                f"A step of {step.model} took {ms_words(step.ms)}, and should take {ms_words(most)} at the very most: "
                f"its bytes and FLOPs take {ms_words(step.least_ms)} on one thread here. Something else had the "
                "processor: measure again when it is quiet, with num_threads=1 or auto."
            )
            found.append(Doubt(told, is_grave=True))
    return found


def under_load(evidence: StepEvidence) -> list[Doubt]:
    """That other programs ran while steps were timed: all ways of decoding were slowed down, if not all alike."""
    facts = []
    if evidence.refused is not None and evidence.refused >= MANY_REFUSED:
        facts.append(f"this process waited for {evidence.refused:.0%} of the processor time that it asked for")
    if evidence.others is not None and evidence.others >= BUSY_CORES:
        facts.append(f"other programs kept {evidence.others:.1f} cores busy")
    if not facts:
        return []
    told = (
        f"While steps were timed, {' and '.join(facts)} (load average before: {evidence.load_average:.2f}). Times hold "
        "for a machine that is as busy: measure again when it is quiet."
    )
    return [Doubt(told, is_grave=False)]


def is_distrusted(evidence: StepEvidence | None) -> bool:
    """Whether no speed is to be told of steps with this evidence."""
    return any(doubt.is_grave for doubt in doubts(evidence))


def doubt_words(evidence: StepEvidence | None) -> list[str]:
    """What a page warns of."""
    return [doubt.words for doubt in doubts(evidence)]


def chosen_words(evidence: StepEvidence | None) -> str | None:
    """Which number of threads was picked, and what the others took; None where none was."""
    if evidence is None or not evidence.chosen_from:
        return None
    taken = ", ".join(step.words for step in evidence.chosen_from)
    return f"{threads_words(evidence.threads)}, picked by the target's step ({taken})"

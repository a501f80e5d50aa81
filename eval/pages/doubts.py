"""Old names of eval.scorecard_tables; go with their last importer."""

from eval.records.evidence import StepEvidence, threads_words
from eval.scorecard_tables import timing_warnings as doubt_words

__all__ = ["DISTRUSTED", "chosen_words", "doubt_words", "is_distrusted"]

DISTRUSTED = "Not decided: see the warnings about step times"


def is_distrusted(evidence: StepEvidence | None) -> bool:  # noqa: ARG001  # until callers have moved
    return False


def chosen_words(evidence: StepEvidence | None) -> str | None:
    """Which number of threads was picked, and what the others took; None where none was."""
    if evidence is None or not evidence.chosen_from:
        return None
    return f"{threads_words(evidence.threads)} ({', '.join(step.words for step in evidence.chosen_from)})"

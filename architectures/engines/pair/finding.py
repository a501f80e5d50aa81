"""What a rule of an engine says of a draft and its target."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from architectures.engines.pair.facts import Pair

EngineName = Literal["vllm", "sglang", "llama.cpp", "transformers", "tensorrt-llm"]


class Severity(StrEnum):
    """How bad a finding is, the worst first."""

    REFUSED = "refused"  # the engine stops, or serves another model than the one in the folder
    LOSSY = "slower or lossy"  # it serves the draft, and gains less by it than it could
    NOT_CHECKED = "not checked"  # a fact is missing, or nobody read what the engine does
    FINE = "fine"


@dataclass(frozen=True)
class Verdict:
    """What a rule says.

    Attributes:
        explanation: With both values.
        remedy: What to do; empty where there is nothing to do.
    """

    severity: Severity
    explanation: str
    remedy: str = ""


@dataclass(frozen=True)
class Finding:
    """A verdict, with the rule it is of and where that rule was read."""

    severity: Severity
    rule: str
    explanation: str
    remedy: str
    source: str


@dataclass(frozen=True)
class Rule:
    """One demand of one engine.

    Attributes:
        source: File of the engine's code or page of its documentation, or "measured".
    """

    name: str
    source: str
    judge: Callable[[Pair], Verdict]

    def __call__(self, pair: Pair) -> Finding:
        """The rule's finding on a draft and its target."""
        verdict = self.judge(pair)
        return Finding(verdict.severity, self.name, verdict.explanation, verdict.remedy, self.source)


def refused(explanation: str, remedy: str) -> Verdict:
    """The engine does not serve this draft."""
    return Verdict(Severity.REFUSED, explanation, remedy)


def lossy(explanation: str, remedy: str) -> Verdict:
    """The engine serves it, slower, or with fewer tokens accepted."""
    return Verdict(Severity.LOSSY, explanation, remedy)


def not_checked(explanation: str, remedy: str = "") -> Verdict:
    return Verdict(Severity.NOT_CHECKED, explanation, remedy)


def fine(explanation: str) -> Verdict:
    """The engine takes it as it is."""
    return Verdict(Severity.FINE, explanation)

"""What was tuned, as a table and a sentence. Pure text."""

from dataclasses import asdict
from typing import Any

from eval.beside.policy_file import PolicyFile
from eval.scorecard.tables import table

Record = dict[str, Any]

POLICY_COLUMNS = (
    "draft proposes",
    "where it is sure of",
    "looked up",
    "from a rate of",
    "rates of runs of 1, 2, ... tokens",
)
COLUMNS = ("temperature", *POLICY_COLUMNS, "predicted", "draft alone")


def policies_page(found: PolicyFile) -> str:
    """Every policy."""
    rows = [
        [
            f"{one.temperature:g}",
            *policy_words(one.lookahead, asdict(one.policy)),
            f"{one.speedup:.2f}x",
            f"{one.draft_alone:.2f}x",
        ]
        for one in found.policies
    ]
    answers = found.policies[0].answers
    return (
        f"{table(COLUMNS, rows)}\n\nTuned on {answers} answers by exact replay and step times of this machine; what is "
        "predicted is of these answers, and so somewhat too much: `widedraft speed --beside` measures it on others."
    )


def engine_words(lookahead: int, policy: Record) -> str:
    """The settings of engines that come nearest to a policy, which none of them has as it is."""
    words = [f"--draft-max {lookahead}", f"--draft-p-min {policy['confidence']:g}"]
    words += ["--spec-type ngram-mod,draft-simple"] if policy["least"] <= 1 else []
    return f"llama.cpp {' '.join(words)}; transformers assistant_confidence_threshold {policy['confidence']:g}"


def policy_words(lookahead: int, policy: Record) -> tuple[str, ...]:
    """A policy, and the draft's own lookahead, in the order of POLICY_COLUMNS."""
    looks_up = policy["least"] <= 1
    return (
        str(lookahead),
        f"{policy['confidence']:g}" if policy["confidence"] else "anything",
        str(policy["lookahead"]) if looks_up else "never",
        f"{policy['least']:g}" if looks_up else "",
        ", ".join(f"{rate:.2f}" for rate in policy["prior"]),
    )

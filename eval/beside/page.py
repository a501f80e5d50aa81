"""What was tuned, as a table and a sentence. Pure text."""

from eval.beside.policy_file import PolicyFile
from eval.scorecard.tables import table

COLUMNS = (
    "temperature",
    "draft proposes",
    "where it is sure of",
    "looked up",
    "from a rate of",
    "rates of runs of 1, 2, ... tokens",
    "predicted",
    "draft alone",
)


def policies_page(found: PolicyFile) -> str:
    """Every policy."""
    rows = [
        [
            f"{one.temperature:g}",
            str(one.lookahead),
            f"{one.policy.confidence:g}" if one.policy.confidence else "anything",
            str(one.policy.lookahead) if one.policy.least <= 1 else "never",
            f"{one.policy.least:g}" if one.policy.least <= 1 else "",
            ", ".join(f"{rate:.2f}" for rate in one.policy.prior),
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

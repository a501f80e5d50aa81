"""What was tuned, as a table and a sentence. Pure text."""

from eval.pages.tables import table
from eval.policies.policy_file import PolicyFile
from eval.policies.policy_words import POLICY_COLUMNS, policy_words

COLUMNS = ("temperature", *POLICY_COLUMNS, "predicted", "draft alone")


def policies_page(found: PolicyFile) -> str:
    rows = [
        [
            f"{one.temperature:g}",
            *policy_words(one.lookahead, one.policy),
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

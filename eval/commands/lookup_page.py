"""What was tuned, as a table and a sentence. Pure."""

from architectures.pages.blocks import Block, Sentence, Table
from eval.policies.policy_file import PolicyFile
from eval.policies.policy_words import POLICY_COLUMNS, policy_words

COLUMNS = ("temperature", *POLICY_COLUMNS, "predicted", "draft alone")


def policies_page(file: PolicyFile) -> list[Block]:
    rows = [
        [
            f"{tuned.temperature:g}",
            *policy_words(tuned.lookahead, tuned.policy),
            f"{tuned.speedup:.2f}x",
            f"{tuned.draft_alone:.2f}x",
        ]
        for tuned in file.policies
    ]
    answers = file.policies[0].answers
    told = (
        f"Tuned on {answers} answers by exact replay and step times of this machine; what is predicted is of these "
        "answers, and so somewhat too much: `widedraft speed --beside` measures it on others."
    )
    return [Table(COLUMNS, rows), Sentence(told)]

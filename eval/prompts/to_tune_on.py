"""Which prompts a policy may be tuned on: none that is scored."""

import re
from collections.abc import Sequence
from itertools import islice

from architectures.checkpoints.fingerprint import fingerprint_value
from architectures.errors import UserError
from eval.prompts.forms import Prompt


def prompts_behind(prompts: Sequence[Prompt], *, scored: int, count: int) -> list[Prompt]:
    """So many of the prompts behind the scored ones that ask something else.

    Raises:
        UserError: If there are fewer.
    """
    first = prompts[:scored]
    rows, asked = {row_of(prompt) for prompt in first}, {fingerprint_value(prompt.messages) for prompt in first}
    others = (
        prompt
        for prompt in prompts[scored:]
        if row_of(prompt) not in rows and fingerprint_value(prompt.messages) not in asked
    )
    left = list(islice(others, count))
    if len(left) < count:
        raise UserError(
            f"eval.policy_prompts={count}: policies are tuned on prompts behind the eval.num_prompts={scored} scored "
            f"ones that ask something else, and of {len(prompts)} in all {len(left)} are left. Give more prompts "
            "(data.num_eval_prompts, eval.tasks, --prompts), or lower either number."
        )
    return left


def row_of(prompt: Prompt) -> str:
    """The row of a prompt, whichever of its turns this is."""
    return re.sub(r"#\d+$", "", prompt.source)

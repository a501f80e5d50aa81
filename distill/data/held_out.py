"""Which prompts are asked at all, and which of them are held out of training. No torch."""

import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TypeVar

from architectures.checkpoints.fingerprint import fingerprint_value
from architectures.errors import UserError
from distill.data.conversations import Conversation
from eval.prompts import Prompt

Row = TypeVar("Row", bound=Prompt | Conversation)


def drop_duplicates(prompts: Sequence[Row]) -> list[Row]:
    """The prompts that ask something new, so that none is both held out and trained on; says how many are not."""
    different = distinct(prompts)
    if len(different) < len(prompts):
        print(
            f"{len(prompts) - len(different)} of {len(prompts)} prompts are duplicates and are left out",
            file=sys.stderr,
        )
    return different


def distinct(prompts: Sequence[Row]) -> list[Row]:
    """The first of all prompts that ask the same."""
    first: dict[str, Row] = {}
    for prompt in prompts:
        content = {name: value for name, value in asdict(prompt).items() if name not in ("source", "category", "task")}
        first.setdefault(fingerprint_value(content), prompt)
    return list(first.values())


def hold_out(
    prompts: Sequence[Row], num_eval_prompts: int, *, seed: int, least_left: int = 1
) -> tuple[list[Row], list[Row]]:
    """The prompts to train on and those held out, drawn with the seed; both in their old order.

    Args:
        prompts: All different.
        num_eval_prompts: How many to hold out.
        seed: Of the draw.
        least_left: How many there must be to train on.

    Raises:
        UserError: If there are fewer.
    """
    if num_eval_prompts + least_left > len(prompts):
        problem = (
            f"leaves none of the {len(prompts)} prompts to train on"
            if least_left
            else f"is more than the {len(prompts)} prompts"
        )
        raise UserError(f"data.num_eval_prompts={num_eval_prompts} {problem}. Hold out fewer, or add prompts.")
    drawn = set(random.Random(seed).sample(range(len(prompts)), num_eval_prompts))  # noqa: S311 - not for secrets
    train = [prompt for index, prompt in enumerate(prompts) if index not in drawn]
    return train, [prompts[index] for index in sorted(drawn)]

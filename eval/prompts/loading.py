"""The prompts of any number of sources, and what a scorecard says of them."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from architectures.checkpoints.fingerprint import fingerprint_value
from eval.prompts.forms import Prompt, parse_row
from eval.prompts.reading import asked_of
from eval.prompts.rows import load_rows
from eval.prompts.source import PromptSource
from eval.prompts.table import TASKS


def load_prompts(sources: Sequence[PromptSource]) -> list[Prompt]:
    """The prompts of every source, in order.

    Raises:
        UserError: If a source is missing, cannot be read, holds no rows, or has a row that is no prompt.
    """
    return [prompt for source in sources for prompt in load_rows(source, parser_of(source))]


def load_in_turn(sources: Sequence[PromptSource], *, most: int) -> list[Prompt]:
    """The prompts of every source, one of each after the other, so that the first few are of all of them.

    Args:
        sources: Where prompts are.
        most: Rows read of a data set that does not say itself how many; files are read whole.

    Raises:
        UserError: As `load_prompts`.
    """
    bounded = [
        source if source.path or source.num_prompts else source.model_copy(update={"num_prompts": most})
        for source in sources
    ]
    turns = zip_longest(*(load_prompts([source]) for source in bounded))
    return [prompt for turn in turns for prompt in turn if prompt is not None]


def parser_of(source: PromptSource) -> Callable[[Any, str], Prompt | None]:
    """What reads a row of a source: its task, which may leave it out, or the six forms of plain rows."""
    return parse_row if source.task is None else partial(asked_of, TASKS[source.task])


def tasks_record(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """Which tasks prompts are of, how many of each, and what they ask, as a hash; those of no task are one entry."""
    by_task: dict[str | None, list[Prompt]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    return [{**identity(task), "prompts": len(of), "sha256": asked_sha256(of)} for task, of in by_task.items()]


def identity(label: str | None) -> dict[str, Any]:
    """Name and version from a task's label."""
    if label is None:
        return {"task": None, "version": None}
    name, version = label.split("/")
    return {"task": name, "version": int(version)}


def asked_sha256(prompts: Sequence[Prompt]) -> str:
    """sha256 of every word that is asked, in order, before a chat template frames it."""
    return fingerprint_value([[prompt.messages, prompt.later_turns] for prompt in prompts])

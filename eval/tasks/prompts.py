"""The prompts of any number of sources."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from eval.config import PromptSource
from eval.tasks.forms import Prompt, parse_row
from eval.tasks.reading import task_prompt
from eval.tasks.rows import load_rows
from eval.tasks.table import TASKS


def load_prompts(sources: Sequence[PromptSource]) -> list[Prompt]:
    """The prompts of every source, in order.

    Raises:
        UserError: If a source is missing, cannot be read, holds no rows, or has a row that is no prompt.
    """
    return [prompt for source in sources for prompt in load_rows(source, parser_of(source))]


def parser_of(source: PromptSource) -> Callable[[Any, str], Prompt]:
    """What reads a row of a source: its task, or the five forms of plain rows."""
    return parse_row if source.task is None else partial(task_prompt, TASKS[source.task])

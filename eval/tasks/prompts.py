"""The prompts of any number of sources."""

from collections.abc import Sequence

from eval.config import PromptSource
from eval.tasks.forms import Prompt, parse_row
from eval.tasks.rows import load_rows


def load_prompts(sources: Sequence[PromptSource]) -> list[Prompt]:
    """The prompts of every source, in order.

    Raises:
        UserError: If a source is missing, cannot be read, holds no rows, or has a row that is no prompt.
    """
    return [prompt for source in sources for prompt in load_rows(source, parse_row)]

"""What answers from a disk must be before a model reads them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.entry_kinds import shown
from architectures.errors import UserError
from eval.shards import REWRITTEN
from eval.tasks.forms import Message

if TYPE_CHECKING:
    from eval.traces import Trace


def require_messages(messages: Sequence[Message], where: str) -> None:
    """Raise UserError for a message without a role or words."""
    for place, message in enumerate(messages):
        if not {"role", "content"} <= message.keys():
            raise UserError(f"{where}: messages.{place} must have role and content, got {shown(message)}. {REWRITTEN}")


def require_rows_of(traces: Iterable["Trace"], *, vocab_size: int, folder: Path) -> None:
    """Raise UserError naming the first answer with an id that a model has no row for.

    Args:
        traces: The answers.
        vocab_size: Of the model that is to read them.
        folder: Of the answers.
    """
    for trace in traces:
        largest = max(*trace.prompt_ids, *trace.answer_ids)
        if largest >= vocab_size:
            raise UserError(
                f"{folder}: the answer of id {trace.id} ({trace.source}) holds token {largest}, but the vocab_size of "
                f"the model that is to read it is {vocab_size}. Take the model that the answers were made with."
            )

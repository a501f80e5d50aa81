"""What answers from a disk must be before a model reads them."""

from collections.abc import Sequence

from architectures.errors import UserError
from architectures.files.entry_kinds import shown
from eval.answers.shards import REWRITTEN
from eval.prompts import Message


def require_messages(messages: Sequence[Message], where: str) -> None:
    """Raise UserError for a message without a role or words."""
    for index, message in enumerate(messages):
        if not {"role", "content"} <= message.keys():
            raise UserError(f"{where}: messages.{index} must have role and content, got {shown(message)}. {REWRITTEN}")

"""How a prompt becomes the token ids a target continues."""

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from architectures.errors import UserError
from eval.prompts.forms import TEXT, Message
from eval.prompts.template_cost import TEMPLATE_FAULTS, refuse_costly_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_prompt(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message]) -> list[int]:
    """Token ids the target continues with its answer.

    Through the chat template, opened for the assistant, where the tokenizer has one; the template alone then places
    special tokens. Otherwise, and where the prompt is raw text, the messages' text, joined by blank lines, with the
    tokenizer's own special tokens.

    Raises:
        UserError: If the chat template refuses the conversation.
    """
    if not tokenizer.chat_template or messages[0]["role"] == TEXT:
        return list(tokenizer("\n\n".join(message["content"] for message in messages))["input_ids"])
    return render_chat(tokenizer, messages, add_generation_prompt=True)


def render_chat(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], *, add_generation_prompt: bool
) -> list[int]:
    """Token ids of a conversation in the tokenizer's chat template, opened for the assistant's turn if that is asked.

    Raises:
        UserError: As `chat_text`.
    """
    text = chat_text(tokenizer, messages, add_generation_prompt=add_generation_prompt)
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def chat_text(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
    """The text of a conversation in the tokenizer's chat template.

    Raises:
        UserError: If the chat template refuses the conversation, fails at it, or takes too much for any.
    """
    from jinja2 import TemplateError

    refuse_costly_template(tokenizer)
    roles = ", ".join(message["role"] for message in messages)
    try:
        text = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=add_generation_prompt, tokenize=False
        )
    except TemplateError as error:
        raise UserError(
            f"The target's chat template refuses a conversation of the roles {roles}: {error}. "
            "Give it the order of roles its template accepts."
        ) from error
    except TEMPLATE_FAULTS as error:
        raise UserError(
            f"{tokenizer.name_or_path}: its chat template fails at a conversation of the roles {roles}: {error}. "
            "Mend chat_template.jinja, or fetch the checkpoint again."
        ) from error
    return cast("str", text)


def template_hash(tokenizer: "PreTrainedTokenizerBase") -> str:
    """sha256 of what frames a prompt: the chat template, or its absence, and the special tokens."""
    template = tokenizer.get_chat_template() if tokenizer.chat_template else None
    framing = {"template": template, "special_tokens": {k: str(v) for k, v in tokenizer.special_tokens_map.items()}}
    return hashlib.sha256(json.dumps(framing, sort_keys=True).encode()).hexdigest()

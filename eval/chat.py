"""Chat messages: read the forms in which datasets store them, and render them with a target's chat template.

Forms: OpenAI's `messages` (content parts, tool calls, reasoning), ShareGPT's from/value, and system, history and tools
columns next to them. A message that a template cannot render is rejected; nothing of it is dropped.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol, cast

from architectures.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]

ROLES = {  # spelling in a row -> role
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response", "ipython"), "tool"),
}
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
SYSTEM_FIELDS = ("system", "system_prompt")
TEXT = "text"  # pseudo-role of a raw text, which the target continues without a chat template
OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
PINNED_DATE = datetime(2026, 1, 1)  # noqa: DTZ001 - what templates that insert today's date insert instead
TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
SENTINEL = "widedraftprobe"
MAX_SHOWN = 3  # examples of each kind of malformed row


class RowError(UserError):
    """A malformed row; `kind` is the same for all rows with the same problem."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class RowErrors:
    """Malformed rows, counted by kind. With `skip` they are reported and left out, otherwise they are an error."""

    skip: bool = False
    by_kind: dict[str, list[RowError]] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        return {kind: len(errors) for kind, errors in self.by_kind.items()}

    def add(self, error: RowError) -> None:
        self.by_kind.setdefault(error.kind, []).append(error)

    def attempt(self, work: Callable[[], Any]) -> Any:
        """Return the result of work; None if it raises a RowError, which is counted."""
        try:
            return work()
        except RowError as error:
            self.add(error)
            return None

    def summary(self) -> str:
        """Return the first examples of each kind, one per line."""
        lines = []
        for kind, errors in sorted(self.by_kind.items(), key=lambda item: -len(item[1])):
            lines += [f"{len(errors)} malformed rows: {kind}"] if len(errors) > 1 else []
            lines += [str(error) for error in errors[:MAX_SHOWN]]
        return "\n".join(lines)

    def raise_any(self) -> None:
        """Raise one UserError for all of them unless malformed rows are skipped."""
        if self.by_kind and not self.skip:
            raise UserError(self.summary())


def wrong(where: str, name: str, expected: str, value: Any) -> RowError:
    try:
        shown = json.dumps(value, default=str)
    except RecursionError:  # json.dumps has less stack left than json.loads had
        shown = "a deeply nested value"
    shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
    kind = re.sub(r"\d", "", f"{name} must be ") + expected
    return RowError(f"{where}: {name} must be {expected}, got {shown}. Fix or delete this row.", kind)


def checked_list(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise wrong(where, name, "a non-empty list", value)
    return value


def is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def checked_text(value: Any, name: str, where: str) -> str:
    """Return the value if it is a non-blank string without lone surrogates."""
    if not isinstance(value, str) or not value.strip() or not is_unicode(value):
        raise wrong(where, name, "a non-empty string of valid Unicode", value)
    return value


def user_turn(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant_turn(text: str) -> Message:
    return {"role": "assistant", "content": text}


def raw_text(text: str) -> Message:
    """Return the message of a prompt that the target continues without a chat template; the only one of its prompt."""
    return {"role": TEXT, "content": text}


# Messages of a row.


def parse_messages(value: Any, name: str, where: str) -> list[Message]:
    """Parse all messages of a field; empty system messages are left out."""
    parsed = [
        parse_message(message, f"{name}[{index}]", where)
        for index, message in enumerate(checked_list(value, name, where))
    ]
    messages = [message for message in parsed if message is not None]
    if not messages:
        raise wrong(where, name, "a conversation with a message that is not empty", value)
    return messages


def parse_message(message: Any, place: str, where: str) -> Message | None:
    """Parse one message: role, content and, if given, tool_calls, reasoning_content, weight 0, and names of a tool.

    Returns:
        None for a system message without content, as some exports write.
    """
    written = (message.get("role") or message.get("from")) if isinstance(message, dict) else None
    role = ROLES.get(written) if isinstance(written, str) else None
    if role is None:
        raise wrong(where, place, f"an object with content and a role of {', '.join(dict.fromkeys(ROLES))}", message)
    field_name = "value" if message.get("content") is None and message.get("value") is not None else "content"
    content, calls = message.get(field_name), parse_tool_calls(message, place, where)
    if written == "function_call":
        calls, content = [parse_call(content, f"{place}.{field_name}", where)], ""
    text = "" if content is None else content_text(content, f"{place}.{field_name}", where)
    reasoning = next((message[name] for name in REASONING_FIELDS if message.get(name)), None)
    if role in ("system", "developer") and not text.strip():
        return None
    if not text.strip() and not calls and role != "tool":
        raise wrong(where, f"{place}.{field_name}", "a non-empty string of valid Unicode", content)
    parsed: Message = {"role": role, "content": text}
    if reasoning is not None:
        parsed["reasoning_content"] = checked_text(reasoning, f"{place}.reasoning_content", where)
    if calls:
        parsed["tool_calls"] = calls
    if role == "assistant" and message.get("weight") is not None:
        if message["weight"] not in (0, 1):
            raise wrong(where, f"{place}.weight", "0 or 1", message["weight"])
        parsed |= {"weight": 0} if message["weight"] == 0 else {}
    if role == "tool":
        parsed |= {name: message[name] for name in ("name", "tool_call_id") if message.get(name)}
    return parsed


def content_text(content: Any, name: str, where: str) -> str:
    """Return the text of a string or of a list of text parts, which are joined by line breaks as vLLM does."""
    if isinstance(content, list):
        texts = []
        for index, part in enumerate(content):
            text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else part
            if not isinstance(text, str):
                kind = part.get("type") if isinstance(part, dict) else None
                raise wrong(where, f"{name}[{index}]", "a text part; other parts cannot be rendered", kind or part)
            texts.append(text)
        content = "\n".join(texts)
    if not isinstance(content, str) or not is_unicode(content):
        raise wrong(where, name, "a non-empty string of valid Unicode", content)
    return content


def parse_tool_calls(message: Mapping[str, Any], place: str, where: str) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or ([message["function_call"]] if message.get("function_call") else [])
    if not isinstance(calls, list):
        raise wrong(where, f"{place}.tool_calls", "a list", calls)
    return [parse_call(call, f"{place}.tool_calls[{index}]", where) for index, call in enumerate(calls)]


def parse_call(call: Any, place: str, where: str) -> dict[str, Any]:
    """Return a call in OpenAI's form, its arguments as an object, which is what chat templates expect."""
    call = without_nulls(parsed_json(call))
    function = parsed_json(call.get("function", call)) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise wrong(where, place, "a tool call with the name of a function", call)
    arguments = parsed_json(function.get("arguments", function.get("parameters")) or {})
    parsed = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return ({"id": call["id"]} if isinstance(call.get("id"), str) else {}) | parsed


def parsed_json(value: Any) -> Any:
    """Return what a string contains as JSON; other values, and strings that are not JSON, unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def without_nulls(value: Any) -> Any:
    """Return a value without null entries, which tables of `datasets` have where another row has a value."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def parse_tools(row: Mapping[str, Any], where: str) -> tuple[dict[str, Any], ...]:
    """Return the functions that a row offers: a list, or the JSON of one, as datasets store it."""
    tools = without_nulls(parsed_json(row.get("tools") or []))
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise wrong(where, "tools", "a list of functions", row["tools"])
    return tuple(tool if "function" in tool else {"type": "function", "function": tool} for tool in tools)


def with_columns(messages: Sequence[Message], row: Mapping[str, Any], where: str) -> list[Message]:
    """Return the messages after those of a row's `system` (or `system_prompt`) and `history` columns."""
    before: list[Message] = []
    name = next((name for name in SYSTEM_FIELDS if row.get(name) not in (None, "")), None)
    if name is not None:
        if messages[0]["role"] == "system":
            raise wrong(where, name, "absent, as messages begin with a system message", row[name])
        before.append({"role": "system", "content": checked_text(row[name], name, where)})
    history = row.get("history") or []
    if not isinstance(history, list):
        raise wrong(where, "history", "a list of user turns and responses", history)
    for index, pair in enumerate(history):
        if not isinstance(pair, list) or len(pair) != 2:
            raise wrong(where, f"history[{index}]", "a user turn and its response", pair)
        texts = [checked_text(text, f"history[{index}][{number}]", where) for number, text in enumerate(pair)]
        before += [user_turn(texts[0]), assistant_turn(texts[1])]
    return [*before, *messages]


# Rendering.

# Raised by Python inside a template: for 1 + "a", a missing field, a division by zero.
TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Chat(Protocol):
    """What a template renders: a prompt, a conversation, or one turn of it."""

    @property
    def messages(self) -> tuple[Message, ...]: ...
    @property
    def tools(self) -> tuple[dict[str, Any], ...]: ...
    @property
    def chat_template_kwargs(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Turn:
    """Messages to render, with tools and further arguments of the chat template."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


def render_prompt(tokenizer: "PreTrainedTokenizerBase", chat: Chat) -> list[int]:
    """Return the token ids that the target continues.

    With a chat template, the rendered conversation with a generation prompt; only the template adds special tokens
    then. Without one, or for raw text, the messages joined by blank lines, with the tokenizer's own special tokens.

    Raises:
        RowError: If the chat template fails for the conversation, or does not render a part of it.
    """
    if not tokenizer.chat_template or chat.messages[0]["role"] == TEXT:
        if chat.tools or any("tool_calls" in message or message["role"] == "tool" for message in chat.messages):
            kind = "tools need a chat template"
            raise RowError(f"{tokenizer.name_or_path}: has no chat template, and {kind}. Remove such rows.", kind)
        return list(tokenizer("\n\n".join(message["content"] for message in chat.messages))["input_ids"])
    return render_chat(tokenizer, chat, add_generation_prompt=True)


def render_chat(tokenizer: "PreTrainedTokenizerBase", chat: Chat, *, add_generation_prompt: bool) -> list[int]:
    """Return the token ids of a conversation rendered with the chat template; errors as for `chat_text`."""
    text = chat_text(tokenizer, chat, add_generation_prompt=add_generation_prompt)
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def chat_text(tokenizer: "PreTrainedTokenizerBase", chat: Chat, *, add_generation_prompt: bool) -> str:
    """Render a conversation with the chat template; a template that inserts today's date inserts PINNED_DATE.

    Raises:
        RowError: If the chat template rejects the conversation, fails, or does not render tools or calls that it has.
    """
    from jinja2 import TemplateError

    used = {
        "tools": bool(chat.tools),
        "tool_calls": any("tool_calls" in message for message in chat.messages),
        "role tool": any(message["role"] == "tool" for message in chat.messages),
    }
    for feature, is_used in used.items():
        if is_used and not renders(tokenizer, feature):
            fact = f"its chat template does not render {feature}"
            raise RowError(f"{tokenizer.name_or_path}: {fact}. Remove such rows, or use another target.", fact)
    try:
        return apply_template(tokenizer, chat, add_generation_prompt=add_generation_prompt)
    except (TemplateError, *TEMPLATE_FAULTS) as error:
        roles = ", ".join(message["role"] for message in chat.messages)
        raise RowError(
            f"{tokenizer.name_or_path}: its chat template fails for the roles {roles}: {error}. Use an "
            "order of roles that it accepts, or fix chat_template.jinja.",
            f"the chat template fails: {error}",
        ) from error


def apply_template(tokenizer: "PreTrainedTokenizerBase", chat: Chat, *, add_generation_prompt: bool) -> str:
    messages, tools = list(chat.messages), cast("Any", list(chat.tools) or None)
    template = TODAY.sub(lambda call: repr(PINNED_DATE.strftime(call[2])), tokenizer.get_chat_template(tools=tools))
    if "developer" not in template:  # a template that does not know the role gets OpenAI's name before 2025
        messages = [each | {"role": "system"} if each["role"] == "developer" else each for each in messages]
    text = tokenizer.apply_chat_template(
        messages,
        tools=tools,
        chat_template=template,
        add_generation_prompt=add_generation_prompt,
        tokenize=False,
        **chat.chat_template_kwargs,
    )
    return cast("str", text)


def renders(tokenizer: "PreTrainedTokenizerBase", feature: str) -> bool:
    """Return True if a chat template renders tools, tool_calls, the role tool, or reasoning_content of a response."""
    return template_renders(tokenizer, str(tokenizer.chat_template), feature)


@lru_cache(maxsize=32)
def template_renders(tokenizer: "PreTrainedTokenizerBase", _template: str, feature: str) -> bool:
    """Render a probe; a tokenizer's template may be replaced, so it is part of the key of this cache."""
    from jinja2 import TemplateError

    function = {"name": SENTINEL, "description": "d", "parameters": {"type": "object", "properties": {}}}
    tools = ({"type": "function", "function": function},)
    call = {"id": "call00000", "type": "function", "function": {"name": SENTINEL, "arguments": {}}}
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    named = {"tool_call_id": "call00000", "name": "f"}
    chats = {
        "tools": Turn((user_turn("?"),), tools),
        "tool_calls": Turn((user_turn("?"), calls), ({"type": "function", "function": function | {"name": "f"}},)),
        "role tool": Turn(
            (
                user_turn("?"),
                calls | {"tool_calls": [call | {"function": {"name": "f", "arguments": {}}}]},
                {"role": "tool", "content": SENTINEL, **named},
            )
        ),
        "reasoning_content": Turn((user_turn("?"), assistant_turn("!") | {"reasoning_content": SENTINEL})),
    }
    try:
        return SENTINEL in apply_template(tokenizer, chats[feature], add_generation_prompt=False)
    except (TemplateError, *TEMPLATE_FAULTS):
        return False


def end_of_turn(tokenizer: "PreTrainedTokenizerBase", stop_ids: AbstractSet[int]) -> int | None:
    """Return the special token that ends a response in the chat template; None without one, or if it ends at a stop."""
    if not tokenizer.chat_template:
        return None
    try:
        turn = Turn((user_turn("?"), assistant_turn(SENTINEL)))
        _, mark, ending = chat_text(tokenizer, turn, add_generation_prompt=False).rpartition(SENTINEL)
    except RowError:  # rows of another form may be accepted
        return None
    ids = tokenizer(ending, add_special_tokens=False)["input_ids"] if mark else []
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    leading = list(takewhile(lambda each: each in special, ids))
    return leading[0] if leading and stop_ids.isdisjoint(leading) else None


def template_hash(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the sha256 of the chat template, or its absence, and the special tokens."""
    template = tokenizer.get_chat_template() if tokenizer.chat_template else None
    framing = {"template": template, "special_tokens": {k: str(v) for k, v in tokenizer.special_tokens_map.items()}}
    if template is not None and "strftime_now" in template:
        framing["date"] = PINNED_DATE.date().isoformat()
    return hashlib.sha256(json.dumps(framing, sort_keys=True).encode()).hexdigest()

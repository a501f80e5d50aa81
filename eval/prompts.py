"""Rows of files and data sets as prompts, and prompts as the token ids that a target continues."""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from architectures.checkpoints.fingerprint import fingerprint_value
from architectures.errors import UserError
from architectures.files.reading import parse_json, read_json, require_regular, unreadable
from eval.tasks import TASKS, FieldNames, HubRows, PromptSource, Task, hub_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Message = dict[str, str]

FIELDS = ("messages", "conversation", "turns", "prompt", "question", "instruction")
CATEGORIES = ("category", "dataset", "topic", "language")  # of a conversation, as arXiv 2310.07177 calls them
ROLES = ("system", "user", "assistant")
TEXT = "text"  # in place of a role: no turn, but what the target continues as it stands
EXAMPLE = '{"prompt": "Why is the sky blue?"}'


@dataclass(frozen=True)
class Prompt:
    """What the target is asked.

    Args:
        source: The row it came from, as "file.jsonl:12".
        messages: The conversation so far, oldest first; the last one is the user's. Or a `raw_text` alone.
        later_turns: User turns to ask afterwards, each once the target has answered the one before.
        category: What kind of prompt it is, for figures by kind; nothing else depends on it.
        task: Which named task it is of, and in which version, as "gsm8k/1"; for figures too.
    """

    source: str
    messages: tuple[Message, ...]
    later_turns: tuple[str, ...] = ()
    category: str | None = None
    task: str | None = None


def parse_row(row: Any, where: str) -> Prompt:
    """One row of any known form as a prompt; UserErrors name the row."""
    field = first_field(row, FIELDS, where, example=EXAMPLE)
    names = CATEGORIES if field == "conversation" else CATEGORIES[:1]
    category = parse_category(row.get(first_there(names, row) or names[0]), where)
    if field in ("messages", "conversation"):
        return Prompt(where, parse_messages(row[field], field, where), category=category)
    if field == "turns":
        first, *later = parse_turns(row[field], field, where)
        return Prompt(where, (user_turn(first),), tuple(later), category)
    return Prompt(where, (user_turn(single_text(row, field, where)),), category=category)


def parse_category(value: Any, where: str) -> str | None:
    """A row's category: a text, or a number as `datasets` stores class labels; None where it is absent or empty."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return checked_text(value, "category", where)


def single_text(row: Mapping[str, Any], field: str, where: str) -> str:
    """The text of a one-text row; an instruction is followed by its input, if any, after a blank line."""
    text = checked_text(row[field], field, where)
    if field != "instruction" or row.get("input") in (None, ""):
        return text
    return f"{text}\n\n{checked_text(row['input'], 'input', where)}"


def parse_turns(value: Any, name: str, where: str) -> list[str]:
    """The user turns in a field of a row."""
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: {name} must be a list of at least one text, got {describe(value)}. Mend this row.")
    return [checked_text(turn, f"{name}[{i}]", where) for i, turn in enumerate(value)]


def parse_messages(value: Any, name: str, where: str) -> tuple[Message, ...]:
    """The conversation in a field of a row, up to its last user turn."""
    messages = parse_each_message(value, name, where)
    if messages[-1]["role"] == "assistant":  # the target writes this answer itself
        messages.pop()
    if not messages or messages[-1]["role"] != "user":
        raise UserError(
            f"{where}: {name} must end with a user turn, or a user turn and its answer. Mend or delete this row."
        )
    return tuple(messages)


def parse_each_message(value: Any, name: str, where: str) -> list[Message]:
    """Every message of the conversation in a field of a row."""
    if not isinstance(value, list) or not value:
        raise UserError(
            f"{where}: {name} must be a list of at least one message, got {describe(value)}. Mend this row."
        )
    return [parse_message(message, f"{name}[{i}]", where) for i, message in enumerate(value)]


def parse_message(message: Any, name: str, where: str) -> Message:
    """Role and content of one message; other fields of it are not part of a prompt."""
    if not isinstance(message, dict):
        raise UserError(
            f"{where}: {name} must be an object with role and content, got {describe(message)}. Mend this row."
        )
    role = message.get("role")
    if role not in ROLES:
        raise UserError(f"{where}: {name}.role must be one of {', '.join(ROLES)}, got {role!r}. Mend this row.")
    return {"role": role, "content": checked_text(message.get("content"), f"{name}.content", where)}


def user_turn(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


def raw_text(text: str) -> Message:
    """A text that the target continues as it stands; it is alone in its conversation."""
    return {"role": TEXT, "content": text}


Parsed = TypeVar("Parsed")

MOST_CHARACTERS = 1 << 24  # of a row
MOST_SPACE = 1 << 10  # before a JSON list
LIST_MIB = 1024  # of a JSON list, which is read whole
MAX_PLACES_SHOWN = 5


@dataclass(frozen=True)
class UnreadRow:
    """A row that nobody has looked at yet.

    Attributes:
        where: Its place, as "file.jsonl:12".
        read: Its value; a UserError where it is none.
    """

    where: str
    read: Callable[[], Any]


Rows = Generator[UnreadRow, None, None]


def load_rows(source: PromptSource, parse: Callable[[Any, str], Parsed | None]) -> list[Parsed]:
    """What the first num_prompts rows of one source are parsed as, each with its place; at least one."""
    with closing(source_rows(source)) as rows:
        found = [parse(row.read(), row.where) for row in rows]
    parsed = [each for each in found if each is not None]
    if not parsed:
        raise UserError(f"{source_name(source)}: no prompts in it. Give a source with at least one row.")
    return parsed


def source_rows(source: PromptSource) -> Rows:
    """The first num_prompts rows of one source, one by one; closed, it closes its file."""
    rows = file_rows(Path(source.path), absent_words(source)) if source.path is not None else dataset_rows(source)
    yield from islice(rows, source.num_prompts)


def as_it_is(row: Any) -> Any:
    """A row that is read already."""
    return row


def source_name(source: PromptSource) -> str:
    """What a message calls a source."""
    return str(source.path or source.name or source.task)


def absent_words(source: PromptSource) -> str:
    """What to do where the file of a source is not there: a named task's rows can be had elsewhere."""
    if source.task is None:
        return "Check the path of this prompt file."
    return (
        f"Rows of task {source.task} are {hub_words(TASKS[source.task].hub)}, on the Hugging Face hub: save them there "
        "as JSON lines, or leave the path out to read them from the hub."
    )


def file_rows(path: Path, absent: str) -> Iterator[UnreadRow]:
    """Each row of a file: of parquet by its name, of a JSON list by its beginning, else of JSON lines.

    Args:
        path: The file.
        absent: The sentence that ends the message where it cannot be read.
    """
    try:
        require_regular(path, remedy="Name a file of JSON lines.")
        is_list = path.suffix == ".json" and begins_a_list(path)
    except OSError as error:
        raise UserError(unreadable(path, error, absent)) from error
    if path.suffix == ".parquet":
        parquet = HubRows(name="parquet", data_files=str(path), split="train", streaming=True)
        return opened_rows(parquet, f"{path}: is no parquet file that `datasets` reads", "Write it anew.", str(path))
    return list_rows(path, absent) if is_list else line_rows(path, absent)


def begins_a_list(path: Path) -> bool:
    """Whether the first thing in a JSON file opens a list."""
    with path.open("rb") as file:
        return file.read(MOST_SPACE).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def list_rows(path: Path, absent: str) -> Iterator[UnreadRow]:
    """Each element of a JSON list."""
    elements = read_json(path, absent, most_mib=LIST_MIB)
    return (UnreadRow(f"{path}[{index}]", partial(as_it_is, row)) for index, row in enumerate(elements))


def line_rows(path: Path, absent: str) -> Iterator[UnreadRow]:
    """Each line of a JSON-lines file; blank lines are passed over but counted.

    Args:
        path: The file.
        absent: The sentence that ends the message where it cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(iter(partial(file.readline, MOST_CHARACTERS + 1), ""), start=1):
                if len(line) > MOST_CHARACTERS:
                    raise UserError(
                        f"{path}:{number}: has over {MOST_CHARACTERS:,} characters. Write one JSON object per line."
                    )
                if line.strip():
                    yield line_row(line, f"{path}:{number}")
    except OSError as error:
        raise UserError(unreadable(path, error, absent)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error}). Save it as UTF-8 JSON lines.") from error


def line_row(line: str | bytes, where: str) -> UnreadRow:
    """The row of a line of JSON."""
    return UnreadRow(where, partial(parse_json, line, where, "Write one JSON object per line."))


def dataset_rows(source: PromptSource) -> Iterator[UnreadRow]:
    """Each row of a split: a hub name, a local folder, or where a named task's rows are."""
    hub = hub_rows(source)
    if hub.streaming and source.num_prompts is None:
        raise UserError(
            f"task {source.task}: its rows come one by one and may be more than anyone waits for. "
            "Say with num_prompts how many to read, or give a file of rows."
        )
    location = f"{source.name or source.task}/{source.config}" if source.config else f"{source.name or source.task}"
    fact = f"{dataset_label(source, hub)}: cannot be loaded"
    return opened_rows(hub, fact, dataset_remedy(source), f"{location}[{hub.split}]")


def opened_rows(hub: HubRows, fact: str, remedy: str, location: str) -> Iterator[UnreadRow]:
    """Each row of what `datasets` opens.

    Args:
        hub: What that is.
        fact: What is told where it does not, before the reason.
        remedy: What is told behind it.
        location: Where the rows are.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    settings = {name: value for name, value in asdict(hub).items() if name not in ("name", "config")}
    try:
        for number, row in enumerate(load_dataset(hub.name, hub.config, **settings), start=1):
            yield UnreadRow(f"{location}:{number}", partial(as_it_is, row))
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{fact} ({' '.join(str(error).split())}). {remedy}") from error


def hub_rows(source: PromptSource) -> HubRows:
    """Where the rows of a source are that names no file: at its own name, or where its task has them."""
    if source.name is not None:
        from datasets import config

        is_streamed = source.num_prompts is not None and not config.HF_HUB_OFFLINE  # only those rows are fetched
        return HubRows(name=source.name, config=source.config, split=str(source.split), streaming=is_streamed)
    own = TASKS[str(source.task)].hub
    return replace(own, config=source.config or own.config, split=source.split or own.split)


def dataset_label(source: PromptSource, hub: HubRows) -> str:
    """Which data set it is, for a message."""
    named = ("" if source.task is None else f"task {source.task}, ") + f"dataset {hub.data_files or hub.name}"
    return named + (f", config {hub.config}" if hub.config else "") + f", split {hub.split}"


def dataset_remedy(source: PromptSource) -> str:
    """What helps where a data set cannot be loaded."""
    if source.task is None or source.name is not None:
        return "Check its name, config and split, and the network."
    return f"Check the network, and with a gated one your login, or give a file of its rows: task {source.task}, path."


def first_field(row: Any, fields: Sequence[str], where: str, *, example: str) -> str:
    """The first of some fields that a row has; the example is shown to whoever has none."""
    require_object(row, where, example=example)
    field = first_there(fields, row)
    if field is None:
        known = ", ".join(row) or "no fields"
        raise UserError(
            f"{where}: has none of the known fields {', '.join(fields)}; it has {known}. "
            f"Give each row one of them, e.g. {example}."
        )
    return field


def first_there(fields: Sequence[str], row: Mapping[str, Any]) -> str | None:
    """The first of some fields that a row has; `datasets` fills those that a row lacks with null."""
    return next((name for name in fields if row.get(name) is not None), None)


def require_object(row: Any, where: str, *, example: str) -> None:
    """Raise UserError unless a row is a JSON object."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: is {describe(row)}, not a JSON object. Write one object per row, e.g. {example}.")


def checked_text(value: Any, name: str, where: str) -> str:
    """The value, if it is a text with something in it that UTF-8 can hold."""
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {name} must be a non-empty text, got {describe(value)}. Mend or delete this row.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"{where}: {name} holds half a surrogate pair, which is no character. Mend or delete this row.")
    return value


def describe(value: Any) -> str:
    """What a JSON value is, in words a person editing the file would use."""
    if value is None:
        return "null"
    if value in ("", [], {}):
        return f"an empty {'text' if value == '' else 'list' if value == [] else 'object'}"
    try:
        shown = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:  # what json could just read, it cannot write from a deeper place of the stack
        return "a value of many levels"
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


def source_words(sources: Sequence[str]) -> str:
    """Where some rows are, the first of them if there are many."""
    return ", ".join(sources[:MAX_PLACES_SHOWN]) + (", ..." if len(sources) > MAX_PLACES_SHOWN else "")


FIELD_IN_TEMPLATE = re.compile(r"\{(\w+)\}")
PIECE = re.compile(r" ?[^\W\d_]+| ?\d| ?(?:[^\w\s]|_)+|\s+")  # words, digits, signs, white space: all of a text


def asked_of(task: Task, row: Any, where: str) -> Prompt | None:
    """As `task_prompt`; None for a row that the task leaves out.

    Raises:
        UserError: As `task_prompt`.
    """
    prompt = task_prompt(task, row, where)
    return prompt if prompt.messages[0]["content"] else None


def task_prompt(task: Task, row: Any, where: str) -> Prompt:
    """One row of a task as a prompt.

    Args:
        task: What the row is of.
        row: Its fields; others than the task's do not matter.
        where: Its place, for messages.

    Raises:
        UserError: If the row is no object, lacks a field of the task, or has it filled wrongly.
    """
    require_object(row, where, example=example_row(task))
    later: list[str] = []
    if task.form == "turns":
        first, *later = parse_turns(*only_field(task, row, where), where)
        messages = (user_turn(first),)
    elif task.form == "conversation":
        messages = parse_messages(*only_field(task, row, where), where)
    else:
        text = template_text(task, row, where)
        messages = (raw_text(text) if task.form == "text" else user_turn(text),)
    return Prompt(where, messages, tuple(later), row_category(task, row, where), task.label)


def row_category(task: Task, row: Mapping[str, Any], where: str) -> str | None:
    """The category of a row, if it has one."""
    field = first_there(task.category, row)
    return None if field is None else parse_category(row[field], where)


def task_conversation(task: Task, row: Any, where: str) -> list[Message]:
    """One row of a task with the answers it brings, oldest message first.

    Raises:
        UserError: As `task_prompt`; also if rows of the task bring no answer to a user's words.
    """
    prompt = task_prompt(task, row, where)
    if task.form == "conversation":
        return parse_each_message(*only_field(task, row, where), where)
    if task.form != "user" or not task.answer:
        raise UserError(
            f"{where}: rows of task {task.name} bring no answer to a user's words. Let the target answer them "
            "(data.answers: written), or name another task."
        )
    return [*prompt.messages, {"role": "assistant", "content": task_answer(task, row, where)}]


def task_answer(task: Task, row: Mapping[str, Any], where: str) -> str:
    """The reference answer of a row, of a task whose rows have one."""
    return checked_text(*wanted(task, task.answer, row, where), where)


def template_text(task: Task, row: Mapping[str, Any], where: str) -> str:
    """The template with the row's fields in it, without the paragraphs that speak of an optional field it lacks."""
    texts = {name: field_text(task, name, row, where) for name in task.fields}
    filled = [
        paragraph.format_map(texts)
        for paragraph in task.template
        if all(texts[name] is not None for name in FIELD_IN_TEMPLATE.findall(paragraph))
    ]
    return middle(whole_lines("\n\n".join(filled), task.max_characters), task.pieces)


def field_text(task: Task, name: str, row: Mapping[str, Any], where: str) -> str | None:
    """The text of one field of a template; None for an optional one that is absent or empty."""
    fields = task.fields[name]
    if name in task.optional and all(row.get(field) in (None, "") for field in fields):
        return None
    return checked_text(*wanted(task, fields, row, where), where)


def only_field(task: Task, row: Mapping[str, Any], where: str) -> tuple[Any, str]:
    """As `wanted`, of a task that reads one list."""
    [fields] = task.fields.values()
    return wanted(task, fields, row, where)


def wanted(task: Task, fields: FieldNames, row: Mapping[str, Any], where: str) -> tuple[Any, str]:
    """What stands in the first of some fields that a row has, and which of them that is."""
    field = first_there(fields, row)
    if field is None:
        known = ", ".join(name for name, value in row.items() if value is not None) or "no fields"
        raise UserError(
            f"{where}: has no {' or '.join(fields)}, which task {task.name} reads; it has {known}. Give each row that "
            "field, name the task the rows are of (`widedraft recipes --tasks` lists them), or leave the task out."
        )
    return row[field], field


def middle(text: str, pieces: tuple[int, int] | None) -> str:
    """The pieces of a text from the first place to before the second; nothing where it has fewer than the second."""
    if pieces is None:
        return text
    found = list(islice(PIECE.finditer(text), pieces[1]))
    return "".join(piece.group() for piece in found[pieces[0] :]) if len(found) == pieces[1] else ""


def whole_lines(text: str, most: int | None) -> str:
    """At most so many characters from the beginning of a text: whole lines, or a part of the first if it is longer."""
    if most is None or len(text) <= most:
        return text
    lines = text[: text.rfind("\n", 0, most) + 1]
    return lines if lines.strip() else text[:most]


def example_row(task: Task) -> str:
    """What a row looks like at least."""
    names = [fields[0] for name, fields in task.fields.items() if name not in task.optional]
    return "{" + ", ".join(f'"{name}": "..."' for name in names) + "}"


# What Python raises inside a template: of 1 + "a", of a missing field, of a division by zero.
TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


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
        UserError: If the chat template refuses the conversation, or fails at it.
    """
    from jinja2 import TemplateError

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


def drop_too_long(prompts: Sequence[Prompt], tokenizer: "PreTrainedTokenizerBase", max_prompt_len: int) -> list[Prompt]:
    """The prompts of at most max_prompt_len tokens; says on stderr how many are longer, and where the first ones are.

    Raises:
        UserError: If all of them are longer.
    """
    fitting: list[Prompt] = []
    too_long: list[str] = []
    for prompt in prompts:
        if len(render_prompt(tokenizer, prompt.messages)) <= max_prompt_len:
            fitting.append(prompt)
        else:
            too_long.append(prompt.source)
    if too_long and not fitting:
        raise UserError(
            f"All {len(prompts)} prompts are longer than {max_prompt_len} tokens ({source_words(too_long)}). "
            "Allow longer ones, or shorten them."
        )
    if too_long:
        print(
            f"{len(too_long)} of {len(prompts)} prompts are longer than {max_prompt_len} tokens and are left out: "
            f"{source_words(too_long)}",
            file=sys.stderr,
        )
    return fitting


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

"""Prompts of files, datasets and named tasks."""

import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import cycle, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from architectures.errors import UserError
from architectures.files import parse_json, read_json, require_regular, unreadable
from architectures.manifest import fingerprint_value
from eval.chat import (
    Message,
    RowError,
    RowErrors,
    assistant_turn,
    checked_list,
    checked_text,
    parse_messages,
    parse_tools,
    raw_text,
    render_prompt,
    user_turn,
    with_columns,
    wrong,
)
from eval.tasks import TASKS, FieldNames, HubRows, PromptSource, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MESSAGE_FIELDS = ("messages", "conversations", "conversation")
FIELDS = (*MESSAGE_FIELDS, "turns", "prompt", "question", "query", "problem", "instruction", "chosen")
RESPONSE_FIELDS = ("answer", "completion", "response", "output", "solution", "chosen")
CATEGORIES = ("category", "dataset", "topic", "language")  # of a conversation, named as in arXiv 2310.07177
EXAMPLE = '{"prompt": "Why is the sky blue?"}'


@dataclass(frozen=True)
class Prompt:
    """A prompt for the target.

    Args:
        source: The row it came from, as "file.jsonl:12".
        messages: The conversation so far, oldest first; the last one is the user's or a tool's. Or a single `raw_text`.
        later_turns: User turns to send afterwards, each after the response to the previous one.
        category: Used only to group figures.
        task: Named task and version, as "gsm8k/1"; used only to group figures.
        tools: Functions offered to the target.
        chat_template_kwargs: Further arguments of the chat template.
    """

    source: str
    messages: tuple[Message, ...]
    later_turns: tuple[str, ...] = ()
    category: str | None = None
    task: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def following(self, response: str) -> "Prompt":
        """Return the prompt of the next turn, after the response to this one."""
        question, *later_turns = self.later_turns
        messages = (*self.messages, assistant_turn(response), user_turn(question))
        return replace(self, messages=messages, later_turns=tuple(later_turns))


def parse_row(row: Any, where: str) -> Prompt:
    """Parse a row of any known form; RowErrors name the row."""
    row = request_body(row)
    name = first_field(row, FIELDS, where, example=EXAMPLE)
    category = row_category(row, CATEGORIES if name == "conversation" else CATEGORIES[:1], where)
    tools = parse_tools(row, where)
    if name == "turns":
        first, *later = parse_turns(row[name], name, where)
        return Prompt(where, tuple(with_columns([user_turn(first)], row, where)), tuple(later), category, tools=tools)
    messages = prompt_messages(row_messages(row, name, where), name, row[name], where)
    return Prompt(where, messages, category=category, tools=tools)


def request_body(row: Any) -> Any:
    """Return the request of a row of OpenAI's batch files; other rows unchanged."""
    return row["body"] if isinstance(row, dict) and isinstance(row.get("body"), dict) else row


def row_messages(row: Mapping[str, Any], name: str, where: str) -> list[Message]:
    """Return a row's messages, the response included if the same field contains it."""
    if name == "chosen" and not isinstance(row[name], list):
        raise wrong(where, name, "a list of messages, or next to a prompt", row[name])
    if name in MESSAGE_FIELDS or isinstance(row[name], list):
        return with_columns(parse_messages(row[name], name, where), row, where)
    return with_columns([user_turn(single_text(row, name, where))], row, where)


def prompt_messages(messages: Sequence[Message], name: str, value: Any, where: str) -> tuple[Message, ...]:
    """Return a conversation without the final response, which the target generates itself."""
    messages = list(messages)
    if messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] not in ("user", "tool"):
        raise wrong(where, name, "a conversation that ends with a user turn, or a user turn and its response", value)
    return tuple(messages)


def row_category(row: Mapping[str, Any], names: Sequence[str], where: str) -> str | None:
    """Return a row's category: a string, several of them, or a class label; None if absent or empty."""
    value = row.get(first_there(names, row) or "")
    if value in (None, "", []):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        return ", ".join(checked_text(each, "category", where) for each in value)
    return checked_text(value, "category", where)


def single_text(row: Mapping[str, Any], field: str, where: str) -> str:
    """Return the text of a one-text row; an instruction is followed by its input, if any, after a blank line."""
    text = checked_text(row[field], field, where)
    if field != "instruction" or row.get("input") in (None, ""):
        return text
    return f"{text}\n\n{checked_text(row['input'], 'input', where)}"


def parse_turns(value: Any, name: str, where: str) -> list[str]:
    return [checked_text(turn, f"{name}[{i}]", where) for i, turn in enumerate(checked_list(value, name, where))]


# Rows of files and datasets.

Parsed = TypeVar("Parsed")
Rows = Generator[tuple[str, Any], None, None]  # location of each row, as "file.jsonl:12", and its value

MOST_CHARACTERS = 1 << 24  # of a row
MOST_SPACE = 1 << 10  # before a JSON list
LIST_MIB = 1024  # of a JSON list, which is read whole
MAX_PLACES_SHOWN = 5
ONE_OBJECT = "Write one JSON object per line."


def load_rows(
    source: PromptSource, parse: Callable[[Any, str], Parsed | None], errors: RowErrors | None = None
) -> list[Parsed]:
    """Parse the first num_prompts rows of one source.

    Args:
        errors: Collects malformed rows; without it, they raise after the last row has been read.

    Raises:
        UserError: If the source cannot be read, rows are malformed, or no row remains.
    """
    found, parsed = errors or RowErrors(), []
    with closing(source_rows(source)) as rows:
        for where, row in rows:
            if isinstance(row, RowError):
                found.add(row)
            elif (each := found.attempt(partial(parse, row, where))) is not None:
                parsed.append(each)
    if errors is None:
        found.raise_any()
    if not parsed and not found.by_kind:
        raise UserError(f"{source_name(source)}: contains no prompts. Use a source with at least one row.")
    return parsed


def source_rows(source: PromptSource) -> Rows:
    """Yield the first num_prompts rows of one source; closing the generator closes the file."""
    rows = dataset_rows(source) if source.path is None else file_rows(Path(source.path), source.task)
    yield from islice(rows, source.num_prompts)


def source_name(source: PromptSource) -> str:
    return str(source.path or source.name or source.task)


def file_rows(path: Path, task: str | None = None) -> Rows:
    """Yield the rows of a parquet, arrow or csv file, of a .json file that contains a list, or of JSON lines.

    Blank lines are skipped but counted. A line that is not JSON is yielded as the RowError that names it.
    """
    try:
        require_regular(path, hint="Pass a file of JSON lines.")
        if path.suffix in (".parquet", ".arrow", ".csv"):
            table = HubRows(name=path.suffix[1:], data_files=str(path), split="train", streaming=True)
            yield from opened_rows(table, str(path))
        elif path.suffix == ".json" and begins_a_list(path):
            for index, row in enumerate(read_json(path, "Write the file again.", most_mib=LIST_MIB)):
                yield f"{path}[{index}]", row
        else:
            with path.open(encoding="utf-8-sig") as file:
                for number, line in enumerate(iter(partial(file.readline, MOST_CHARACTERS + 1), ""), start=1):
                    where = f"{path}:{number}"
                    if len(line) > MOST_CHARACTERS:
                        raise UserError(f"{where}: has over {MOST_CHARACTERS:,} characters. {ONE_OBJECT}")
                    if line.strip():
                        yield where, parse_line(line, where)
    except OSError as error:
        fix = "Check the path of this prompt file."
        if task is not None:
            hub = TASKS[task].hub
            fix = f"Rows of task {task} are {hub.data_files or hub.name} on the hub; remove path to load them."
        raise UserError(unreadable(path, error, fix)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error}). Save it as UTF-8 JSON lines.") from error


def parse_line(line: str, where: str) -> Any:
    """Return the value of a line of JSON, or the error that it is not JSON."""
    try:
        return parse_json(line, where, ONE_OBJECT)
    except UserError as error:
        return RowError(str(error), "not JSON")


def begins_a_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(MOST_SPACE).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def dataset_rows(source: PromptSource) -> Rows:
    if source.name is not None:
        from datasets import config

        is_streamed = source.num_prompts is not None and not config.HF_HUB_OFFLINE  # downloads only those rows
        hub = HubRows(name=source.name, config=source.config, split=str(source.split), streaming=is_streamed)
    else:
        own = TASKS[str(source.task)].hub
        hub = replace(own, config=source.config or own.config, split=source.split or own.split)
    if hub.streaming and source.num_prompts is None:
        raise UserError(f"task {source.task}: its rows are streamed. Set num_prompts, or pass a file of rows.")
    place = f"{source.name or source.task}" + (f"/{source.config}" if source.config else "")
    yield from opened_rows(hub, f"{place}[{hub.split}]")


def opened_rows(hub: HubRows, place: str) -> Rows:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    settings = {name: value for name, value in asdict(hub).items() if name not in ("name", "config")}
    try:
        for number, row in enumerate(load_dataset(hub.name, hub.config, **settings), start=1):
            yield f"{place}:{number}", row
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        given = ", ".join(f"{name} {value}" for name, value in asdict(hub).items() if value)
        raise UserError(
            f"{place}: `datasets` cannot load it ({given}): {' '.join(str(error).split())}. Check its name, config and "
            "split, the network and, if it is gated, your login; or set path to a file of its rows."
        ) from error


# Validation of rows.


def first_field(row: Any, fields: Sequence[str], where: str, *, example: str) -> str:
    """Return the first of some fields that a row has; UserError with the example if it has none."""
    require_object(row, where, example=example)
    field = first_there(fields, row)
    if field is None:
        known = ", ".join(name for name, value in row.items() if value is not None) or "no fields"
        kind = f"has none of the fields {', '.join(fields)}"
        raise RowError(f"{where}: {kind}; it has {known}. Write e.g. {example}.", kind)
    return field


def first_there(fields: Sequence[str], row: Mapping[str, Any]) -> str | None:
    """Return the first field that is present and not null, as `datasets` fills missing fields with null."""
    return next((name for name in fields if row.get(name) is not None), None)


def require_object(row: Any, where: str, *, example: str) -> None:
    if not isinstance(row, dict):
        raise wrong(where, "the row", f"a JSON object, e.g. {example}", row)


# Rows of named tasks.

FIELD_IN_TEMPLATE = re.compile(r"\{(\w+)\}")
PIECE = re.compile(r" ?[^\W\d_]+| ?\d| ?(?:[^\w\s]|_)+|\s+")  # words, digits, punctuation, or white space


def task_prompt(task: Task, row: Any, where: str) -> Prompt:
    """Parse a row of a task; the content is empty if the task skips the row.

    Raises:
        UserError: If the row is not an object, or a field of the task is missing or invalid.
    """
    require_object(row, where, example=example_row(task))
    later: list[str] = []
    if task.form in ("turns", "conversation"):
        [names] = task.fields.values()
        field = task_field(task, names, row, where)
        if task.form == "turns":
            first, *later = parse_turns(row[field], field, where)
            messages = (user_turn(first),)
        else:
            messages = prompt_messages(parse_messages(row[field], field, where), field, row[field], where)
    else:
        text = template_text(task, row, where)
        messages = (raw_text(text) if task.form == "text" else user_turn(text),)
    return Prompt(where, messages, tuple(later), row_category(row, task.category, where), task.label)


def task_conversation(task: Task, row: Any, where: str) -> list[Message]:
    """Return a row of a task with its reference responses, oldest message first.

    Raises:
        UserError: As `task_prompt`; also if rows of the task have no reference response to a user turn.
    """
    prompt = task_prompt(task, row, where)
    if task.form == "conversation":
        [names] = task.fields.values()
        field = task_field(task, names, row, where)
        return parse_messages(row[field], field, where)
    if task.form != "user" or not task.answer:
        raise UserError(
            f"{where}: rows of task {task.name} have no response. Let the target generate responses "
            "(data.responses: written), or use another task."
        )
    return [*prompt.messages, {"role": "assistant", "content": task_answer(task, row, where)}]


def task_answer(task: Task, row: Mapping[str, Any], where: str) -> str:
    field = task_field(task, task.answer, row, where)
    return checked_text(row[field], field, where)


def template_text(task: Task, row: Mapping[str, Any], where: str) -> str:
    """Fill in the template, without the paragraphs that name a missing optional field."""
    texts = {}
    for name, names in task.fields.items():
        if name not in task.optional or any(row.get(each) not in (None, "") for each in names):
            field = task_field(task, names, row, where)
            texts[name] = checked_text(row[field], field, where)
    paragraphs = [each for each in task.template if texts.keys() >= set(FIELD_IN_TEMPLATE.findall(each))]
    text = "\n\n".join(paragraph.format_map(texts) for paragraph in paragraphs)
    return middle(whole_lines(text, task.max_characters), task.pieces)


def task_field(task: Task, names: FieldNames, row: Any, where: str) -> str:
    return first_field(row, names, where, example=f"{example_row(task)} of task {task.name}")


def middle(text: str, pieces: tuple[int, int] | None) -> str:
    """Return the pieces from the first index up to the second; empty if the text has fewer."""
    if pieces is None:
        return text
    found = list(islice(PIECE.finditer(text), pieces[1]))
    return "".join(piece.group() for piece in found[pieces[0] :]) if len(found) == pieces[1] else ""


def whole_lines(text: str, most: int | None) -> str:
    """Truncate a text to at most `most` characters, at a line break unless the first line is longer."""
    if most is None or len(text) <= most:
        return text
    lines = text[: text.rfind("\n", 0, most) + 1]
    return lines if lines.strip() else text[:most]


def example_row(task: Task) -> str:
    return json.dumps({fields[0]: "..." for name, fields in task.fields.items() if name not in task.optional})


# Selection of prompts.


class HasSource(Protocol):
    """A prompt or a conversation."""

    @property
    def source(self) -> str: ...


Sourced = TypeVar("Sourced", bound=HasSource)


def drop_too_long(prompts: Sequence[Sourced], lengths: Sequence[int], max_prompt_len: int) -> list[Sourced]:
    """Return the prompts of at most max_prompt_len tokens; reports dropped ones on stderr.

    Raises:
        UserError: If all of them are longer.
    """
    pairs = list(zip(prompts, lengths, strict=True))
    fitting = [prompt for prompt, length in pairs if length <= max_prompt_len]
    if len(fitting) < len(prompts):
        sources = [prompt.source for prompt, length in pairs if length > max_prompt_len]
        places = ", ".join(sources[:MAX_PLACES_SHOWN]) + (", ..." if len(sources) > MAX_PLACES_SHOWN else "")
        fact = f"{len(sources)} of {len(prompts)} prompts are longer than {max_prompt_len} tokens ({places})"
        if not fitting:
            raise UserError(f"{fact}. Raise the limit, or shorten them.")
        print(f"{fact} and are dropped", file=sys.stderr)
    return fitting


def load_prompts(
    sources: Sequence[PromptSource],
    *,
    chat_template_kwargs: Iterable[Mapping[str, Any]] = ({},),
    errors: RowErrors | None = None,
) -> list[Prompt]:
    """Load the prompts of every source, in order.

    Args:
        chat_template_kwargs: Arguments of the chat template; several are used in turn, one per row.
        errors: As for `load_rows`.

    Raises:
        UserError: If a source is missing, unreadable or empty, or a row is not a prompt.
    """
    prompts = [prompt for source in sources for prompt in load_rows(source, parser_of(source), errors)]
    return with_template_kwargs(prompts, chat_template_kwargs)


Chats = TypeVar("Chats", bound=Any)  # prompts or conversations


def with_template_kwargs(rows: Sequence[Chats], chat_template_kwargs: Iterable[Mapping[str, Any]]) -> list[Chats]:
    """Return the rows with arguments of the chat template; several are used in turn, one per row.

    An iterator is left after the last that was used.
    """
    return [
        replace(row, chat_template_kwargs=kwargs) if kwargs else row
        for row, kwargs in zip(rows, cycle(chat_template_kwargs), strict=False)
    ]


def rendered(
    tokenizer: "PreTrainedTokenizerBase", prompts: Sequence["Prompt"], errors: RowErrors | None = None
) -> list[tuple["Prompt", list[int]]]:
    """Return each prompt with its token ids.

    Args:
        errors: Collects prompts that the chat template rejects; without it, all of them raise one UserError.
    """
    found, pairs = errors or RowErrors(), []
    for prompt in prompts:
        ids = found.attempt(partial(render_row, tokenizer, prompt))
        pairs += [] if ids is None else [(prompt, ids)]
    if errors is None:
        found.raise_any()
    return pairs


def render_row(tokenizer: "PreTrainedTokenizerBase", prompt: "Prompt") -> list[int]:
    """Render a prompt; errors begin with its row."""
    try:
        return render_prompt(tokenizer, prompt)
    except RowError as error:
        raise RowError(f"{prompt.source}: {error}", error.kind) from error


def load_in_turn(
    sources: Sequence[PromptSource], *, most: int, chat_template_kwargs: Sequence[Mapping[str, Any]] = ({},)
) -> list[Prompt]:
    """Load the prompts of every source, interleaved, so that the first few come from all of them.

    Args:
        sources: As for `load_prompts`, like the errors.
        most: Limit for a dataset without num_prompts; files are read whole.
    """
    bounded = [
        source if source.path or source.num_prompts else source.model_copy(update={"num_prompts": most})
        for source in sources
    ]
    turns = zip_longest(*(load_prompts([source], chat_template_kwargs=chat_template_kwargs) for source in bounded))
    return [prompt for turn in turns for prompt in turn if prompt is not None]


def parser_of(source: PromptSource) -> Callable[[Any, str], Prompt | None]:
    """Return the parser of a source's rows: that of its task, which may skip rows, or `parse_row`."""
    if source.task is None:
        return parse_row
    task = TASKS[source.task]

    def parse(row: Any, where: str) -> Prompt | None:
        prompt = task_prompt(task, row, where)
        return prompt if prompt.messages[0]["content"] else None

    return parse


def tasks_record(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """Summarise prompts by task: number of prompts, and a hash of their content before a chat template.

    Prompts without a task form one entry.
    """
    by_task: dict[str | None, list[Prompt]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    return [
        {
            "task": label and label.partition("/")[0],
            "version": label and int(label.partition("/")[2]),
            "prompts": len(of),
            "sha256": fingerprint_value([[prompt.messages, prompt.later_turns] for prompt in of]),
        }
        for label, of in by_task.items()
    ]

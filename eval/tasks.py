"""Named tasks, read from tasks.yaml, and the prompt sources of a recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    Field,
    Json,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    with_config,
)

from architectures.errors import UserError
from architectures.settings import Flag, Section

Form = Literal["user", "text", "turns", "conversation"]
FieldNames = tuple[str, ...]  # fields of a row, of which the first one present counts


@with_config(extra="forbid")
@dataclass(frozen=True, kw_only=True)
class HubRows:
    """Arguments of `datasets.load_dataset`; `config` is its second."""

    name: str
    split: str
    config: str | None = None
    revision: str | None = None
    data_dir: str | None = None
    data_files: str | None = None
    streaming: bool = False


@with_config(extra="forbid")
@dataclass(frozen=True, kw_only=True)
class Task:
    """A named set of prompts; tasks.yaml explains its keys."""

    name: str
    version: int
    form: Form = "user"
    template: tuple[str, ...]
    fields: dict[str, FieldNames]
    optional: frozenset[str] = frozenset()
    max_characters: int | None = None
    pieces: tuple[int, int] | None = None
    answer: FieldNames = ()
    category: FieldNames = ()
    hub: HubRows
    licence: str
    source: str

    @property
    def label(self) -> str:
        return f"{self.name}/{self.version}"


TASKS_PATH = Path(__file__).with_name("tasks.yaml")
TASKS: dict[str, Task] = {
    name: TypeAdapter(Task).validate_python({"name": name, **task})
    for name, task in yaml.safe_load(TASKS_PATH.read_text(encoding="utf-8")).items()
}


def named_task(name: str) -> str:
    if name not in TASKS:
        near = get_close_matches(name, TASKS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`widedraft recipes --tasks` lists them."
        raise ValueError(f"must be a named task, got {name!r}. {hint}")
    return name


TaskName = Annotated[str, AfterValidator(named_task), WithJsonSchema({"type": "string", "enum": list(TASKS)})]


class PromptSource(Section):
    """Prompts from one place: a path or a name, or a task, which has a default place."""

    task: TaskName | None = Field(
        default=None,
        description="A named task of `widedraft recipes --tasks`: how rows are read, and their default source.",
    )
    path: str | None = Field(
        default=None,
        min_length=1,
        description="A file with a prompt per row: JSON lines, JSON list (.json) or parquet.",
    )
    name: str | None = Field(default=None, min_length=1, description="A hub id or directory for `datasets`.")
    config: str | None = Field(default=None, min_length=1, description="Configuration of the dataset.")
    split: str | None = Field(
        default=None, min_length=1, description="Split of the dataset; null: the task's, else train."
    )
    num_prompts: int | None = Field(default=None, ge=1, description="Use only the first rows; null: all.")

    @field_validator("name")
    @classmethod
    def _one_of_path_and_name(cls, name: str | None, info: ValidationInfo) -> str | None:
        path = info.data.get("path")
        if name is not None and path is not None:
            raise ValueError(f"must not be set with path, got {name!r} and {path!r}. Keep one.")
        known = {"path", "task"} <= info.data.keys()  # an invalid one is reported already
        if name is None and path is None and known and info.data["task"] is None:
            raise ValueError("must be set, or path or task: prompts come from a file, a dataset or a named task.")
        return name

    @field_validator("config", "split")
    @classmethod
    def _only_of_a_data_set(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("path") is not None and value not in (None, "train"):
            raise ValueError(f"must not be set with path, got {value!r}. A file has no configurations or splits.")
        return value

    @field_validator("split")
    @classmethod
    def _train_unless_a_task_knows(cls, split: str | None, info: ValidationInfo) -> str | None:
        own = info.data.get("task") is not None and info.data.get("name") is None
        return "train" if split is None and not own else split


PromptWords = Annotated[
    tuple[str, ...],
    Field(
        strict=False,
        description="A file of prompts, a task of `widedraft recipes --tasks`, or a task and a file of its rows.",
    ),
    Flag(metavar="FILE|TASK[=FILE]", is_repeated=True),
]
TemplateKwargs = Annotated[
    Json[dict[str, Any]],
    WithJsonSchema({"type": "string"}),
    Field(description='Arguments of the chat template, such as {"enable_thinking": false}.'),
    Flag(metavar="JSON", absent="none"),
]


def prompt_sources(words: Sequence[str]) -> list[PromptSource]:
    """Parse command-line words into sources, in order.

    Raises:
        UserError: If a word is neither a task nor like a file's name.
    """
    return list(map(prompt_source, words))


def prompt_source(word: str) -> PromptSource:
    """Parse a word; ./gsm8k is a file of that name, gsm8k the task."""
    name, separator, path = word.partition("=")
    if name in TASKS and bool(separator) == bool(path):
        return PromptSource(task=name, path=path or None)
    if not word or (not Path(word).exists() and not Path(name).suffix and "/" not in name):
        near = get_close_matches(name, TASKS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`widedraft recipes --tasks` lists the tasks."
        raise UserError(f"--prompts {word}: is not a task, task=FILE or file. {hint}")
    return PromptSource(path=word)

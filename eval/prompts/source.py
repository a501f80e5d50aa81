"""Prompt sources, wherever a recipe names them. No torch."""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
)

from architectures.files.section import Section
from eval.prompts.table import TASKS, named_task

TaskName = Annotated[str, AfterValidator(named_task), WithJsonSchema({"type": "string", "enum": list(TASKS)})]


class PromptSource(Section):
    """Prompts from one place. Needs one of path and name, or a task, which knows a place of its own."""

    task: TaskName | None = Field(
        default=None,
        description="A named task (`widedraft recipes --tasks`): how rows are read, and where they are.",
    )
    path: str | None = Field(
        default=None,
        min_length=1,
        description="A file, one prompt a row: JSON lines, a JSON list (.json) or parquet (.parquet).",
    )
    name: str | None = Field(default=None, min_length=1, description="A hub id or folder that `datasets` opens.")
    config: str | None = Field(default=None, min_length=1, description="Configuration of a `datasets` name.")
    split: str | None = Field(
        default=None, min_length=1, description="Split of a data set; null is the task's own, or train of a name."
    )
    streaming: bool = Field(
        default=False, description="Read the rows of a name one by one, without loading the data set first."
    )
    num_prompts: int | None = Field(default=None, ge=1, description="Read only the first rows; null reads all of them.")

    @model_serializer(mode="wrap")
    def _recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As it was before there was `streaming`, where that is not asked for: fingerprints and hashes hold."""
        return {key: value for key, value in dump(self).items() if key != "streaming" or value}

    @field_validator("name")
    @classmethod
    def _one_of_path_and_name(cls, name: str | None, info: ValidationInfo) -> str | None:
        path = info.data.get("path")
        if name is not None and path is not None:
            raise ValueError(f"must be left out beside path, got {name!r} and {path!r}. Keep one.")
        known = {"path", "task"} <= info.data.keys()  # a wrong one is reported already
        if name is None and path is None and known and info.data["task"] is None:
            raise ValueError("must be given, or path, or task. Prompts come from a file, a data set or a named task.")
        return name

    @field_validator("streaming")
    @classmethod
    def _only_of_a_name(cls, streaming: bool, info: ValidationInfo) -> bool:  # noqa: FBT001  # pydantic's signature
        if streaming and "name" in info.data and info.data["name"] is None:
            raise ValueError("must be false without name, got true. A file is read row by row; a task knows by itself.")
        return streaming

    @field_validator("config", "split")
    @classmethod
    def _only_of_a_data_set(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("path") is not None and value not in (None, "train"):
            raise ValueError(f"must be left out beside path, got {value!r}. A file has no configurations or splits.")
        return value

    @field_validator("split")
    @classmethod
    def _train_unless_a_task_knows(cls, split: str | None, info: ValidationInfo) -> str | None:
        own = info.data.get("task") is not None and info.data.get("name") is None
        return "train" if split is None and not own else split

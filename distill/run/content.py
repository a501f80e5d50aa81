"""Prompt files, texts and data sets as inputs of a stage: by their content, not by where they are. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from architectures.checkpoints.fingerprint import fingerprint_file, fingerprint_folder
from distill.recipe.sections.text import TextConfig
from eval.tasks import TASKS, PromptSource


def sources_as_input(sources: Sequence[PromptSource]) -> list[dict[str, Any]]:
    """How each source is read, with the SHA-256 of its file or local data set; one of the hub is known by its name."""
    return [
        {
            **source.model_dump(mode="json", exclude_none=True),
            **({} if source.task is None else {"task": TASKS[source.task].label}),
            **content_of(source.path, source.name),
        }
        for source in sources
    ]


def text_as_input(text: TextConfig | None) -> dict[str, Any]:
    """Section text, with the SHA-256 of its files and local data sets."""
    assert text is not None  # whoever trains on text has some
    values = text.model_dump(mode="json")
    for domain, recorded in zip(text.domains, values["domains"], strict=True):
        recorded.update(content_of(domain.path, domain.dataset))
    return values


def content_of(path: str | None, dataset: str | None) -> dict[str, str]:
    """SHA-256 of a file, or of all files of a local data set; empty for a hub id."""
    if path is not None and Path(path).is_file():
        return {"sha256": fingerprint_file(Path(path))}
    if dataset is not None and Path(dataset).is_dir():
        return {"sha256": fingerprint_folder(Path(dataset))}
    return {}

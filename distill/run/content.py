"""Prompt files, texts and data sets as fingerprints: what they hold, not where they are. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from architectures.checkpoints.fingerprint import fingerprint_file, fingerprint_folder, fingerprint_value
from architectures.checkpoints.fingerprint_parts import Parts, flat, with_parts
from distill.recipe.sections.text import TextConfig, is_plain_text
from eval.prompts.source import PromptSource
from eval.prompts.table import TASKS

JSON_READ_BY_LINE = "lines/2"  # the reader before told places in such files otherwise: none is continued with this one


def fingerprint_sources(sources: Sequence[PromptSource]) -> str:
    """Content of prompt files and local data sets, and names of those of the hub, as one fingerprint."""
    values: list[Any] = []
    parts: Parts = {}
    for source in sources:
        content = content_of(source.path, source.name)
        task = [] if source.task is None else [TASKS[source.task].label]
        values.append([source.model_dump(mode="json", exclude={"task"}), content, *task])
        parts |= told(source, content)
    return with_parts(fingerprint_value(values), parts)


def told(source: PromptSource, content: str | None) -> Parts:
    """The file, or the data set, with its content where that is here, and how it is read."""
    name = str(source.path or source.name)
    said = {"path", "name"} if source.path is None else {"path", "name", "config", "split"}  # of a data set alone
    how = flat(source.model_dump(mode="json", exclude=said, exclude_defaults=True), name)
    return {**({} if content is None else {name: content}), **how}


def fingerprint_text(text: TextConfig | None) -> str:
    """Section text, and the content of its files and local data sets, as one fingerprint."""
    assert text is not None  # whoever trains on text has some
    domains = text.domains
    contents = [content_of(domain.path, domain.dataset) for domain in domains]
    by_line = any(domain.path is not None and not is_plain_text(domain.path) for domain in domains)
    reader = [JSON_READ_BY_LINE] if by_line else []
    read = {str(domain.path or domain.dataset): content for domain, content in zip(domains, contents, strict=True)}
    parts = {**flat(text.model_dump(mode="json"), "text"), **{name: each for name, each in read.items() if each}}
    return with_parts(fingerprint_value([text.model_dump(mode="json"), contents, *reader]), parts)


def content_of(path: str | None, dataset: str | None) -> str | None:
    """What a file holds, or all files of a data set in a local folder; None of a hub id, which is known by its name."""
    if path is not None and Path(path).is_file():
        return fingerprint_file(Path(path))
    if dataset is not None and Path(dataset).is_dir():
        return fingerprint_folder(Path(dataset))
    return None

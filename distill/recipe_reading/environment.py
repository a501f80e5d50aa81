"""Which values of a recipe the environment has a part in: files name where such a value is from, and do not copy it."""

import re
from collections.abc import Iterator
from typing import Any

from distill.recipe_reading.yaml_lines import KeyPath

ENVIRONMENT = "oc.env:"
REFERENCE = re.compile(r"\$\{([^{}]*)")
PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*")


def from_environment(written: dict[str, Any]) -> dict[KeyPath, str]:
    """The text of every value that the environment may have a part in, also by way of other keys, by its path.

    A text whose references cannot be told without filling them in counts as well, where any other reads the
    environment: it stays as true as it is where it stands.
    """
    texts = {path: text for path, text in texts_of(written, ()) if "${" in text}
    dependent = {path for path, text in texts.items() if ENVIRONMENT in text}
    while more := {path for path in texts.keys() - dependent if refers_to_any(texts[path], dependent)}:
        dependent |= more
    return {path: text for path, text in texts.items() if path in dependent}


def refers_to_any(text: str, paths: set[KeyPath]) -> bool:
    """Whether a text may refer to one of the paths, or to what is above or below it."""
    if not paths:
        return False
    for reference in REFERENCE.findall(text):
        if not PLAIN_KEY.fullmatch(reference):
            return True
        path = tuple(int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", reference))
        if any(other[: len(path)] == path[: len(other)] for other in paths):
            return True
    return False


def texts_of(values: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Every text below a path."""
    if isinstance(values, str):
        yield path, values
    steps = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for step, value in steps:
        yield from texts_of(value, (*path, step))

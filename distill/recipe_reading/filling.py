"""How much work it is to fill in the `${...}` of a recipe, told before that is done.

OmegaConf fills a `${key}` in anew wherever it stands: of n lines that each name the line before twice, the last one is
filled in 2^n times.
"""

import re
from collections.abc import Iterator
from typing import Any

from architectures.errors import UserError
from distill.recipe_reading.text_rules import INNERMOST, KEY
from distill.recipe_reading.yaml_lines import KeyPath, dotted

MOST_WORK = 300_000  # characters, and WORK_PER_VALUE for every value and every ${...} on the way to it
WORK_PER_VALUE = 100  # what filling in one ${...} takes as many characters' time as

WHOLE = re.compile(r"-?\d+")


class Filling:
    """How much work it is to fill in the values of a recipe.

    Args:
        values: The recipe, defaults included, before anything is filled in.
    """

    def __init__(self, values: dict[str, Any]):
        self.values = values
        self.known: dict[KeyPath, int] = {}

    def refuse_too_much(self, name: str) -> None:
        """Raise UserError if filling in takes longer than a check may; `name` is the file."""
        try:
            works = {path: self.work(path, text) for path, text in texts((), self.values) if "${" in text}
        except RecursionError as error:
            raise UserError(f"{name}: keys name each other in too long a chain. Write some values out.") from error
        if sum(works.values()) > MOST_WORK:
            most = max(works, key=lambda path: works[path])
            raise UserError(
                f"{name}: filling in {dotted(most)} and other ${{...}} would make too much of them. "
                "Name fewer keys in one value, or write values out."
            )

    def work(self, path: KeyPath, value: Any) -> int:
        """As many characters; what names itself, which OmegaConf refuses, is counted once."""
        if path not in self.known:
            self.known[path] = 0  # while it is counted
            self.known[path] = WORK_PER_VALUE + self._inside(path, value)
        return self.known[path]

    def _inside(self, path: KeyPath, value: Any) -> int:
        if isinstance(value, dict | list):
            return sum(self.work((*path, step), item) for step, item in steps(value))
        if not isinstance(value, str):
            return 0
        return len(value) + sum(WORK_PER_VALUE + self._named(inside, path) for inside in INNERMOST.findall(value))

    def _named(self, inside: str, path: KeyPath) -> int:
        """The work of what a `${...}` names, or of the first `${...}` on the way there; 0 if that is no key."""
        match = KEY.fullmatch(inside)
        if match is None:
            return 0
        dots, key = match.groups()
        above = path[: len(path) - len(dots)] if dots else ()
        reached: KeyPath = ()
        value: Any = self.values
        for step in (*above, *re.findall(r"[\w-]+", key)):
            if isinstance(value, str):
                break
            name: Any = int(step) if isinstance(value, list) and WHOLE.fullmatch(str(step)) else step
            try:
                value = value[name]
            except (KeyError, IndexError, TypeError):
                return 0
            reached = (*reached, name)
        return self.work(reached, value)


def texts(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, str]]:
    """Every text below a path, with its own path."""
    if isinstance(value, str):
        yield path, value
    for step, item in steps(value):
        yield from texts((*path, step), item)


def steps(value: Any) -> list[tuple[Any, Any]]:
    """Keys or positions of a section or list, with what stands there; none of anything else."""
    return list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())

"""pydantic's errors as sentences for the person who wrote the recipe."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from architectures.settings.requirements import Schema, options, requirement, section_keys, short, shown_value
from distill.recipe_reading.keys import known_keys, meant, nearest_key, schema_at, schema_of, tags
from distill.recipe_reading.source import BROKEN, Source
from distill.recipe_reading.yaml_lines import MOST_MISTAKES, KeyPath, Mistake, dotted


def mistakes_of(error: ValidationError, source: Source) -> Iterator[Mistake]:
    """One mistake per key that is wrong; keys that could not be read at all were reported when they were read."""
    seen = {mistake.path for mistake in source.mistakes if mistake.path in source.overrides}
    schema = schema_of(source.model)
    placed = [
        (*_path_and_value(details, source.values), details)
        for details in error.errors(include_url=False)[: MOST_MISTAKES + 1]
    ]
    paths = {path for path, _, _ in placed}
    for path, value, details in placed:
        if path not in seen and value is not BROKEN and not _is_above(path, paths):
            seen.add(path)
            yield Mistake(path, _sentence(details, path, value, source, schema))


def _is_above(path: KeyPath, paths: Iterable[KeyPath]) -> bool:
    """Whether there is a mistake inside what stands here: then a union's other options were not meant."""
    return any(len(other) > len(path) and other[: len(path)] == path for other in paths)


def report(mistakes: Iterable[Mistake], source: Source) -> str:
    """One line per mistake, each beginning with its location: the file in the order of its lines, then the command."""
    lines = [text for _, text in sorted(_located(mistake, source) for mistake in mistakes)]
    more = [] if len(lines) <= MOST_MISTAKES else ["There are more mistakes than these."]
    return "\n".join(lines[:MOST_MISTAKES] + more)


def _located(mistake: Mistake, source: Source) -> tuple[tuple[bool, int], str]:
    """What to sort by, and the line to print."""
    above = [mistake.path[:length] for length in range(len(mistake.path), 0, -1)]
    line = mistake.line or next((source.lines[path] for path in above if path in source.lines), 0)
    below = [path for path in source.overrides if path[: len(mistake.path)] == mistake.path and not line]
    word = next((source.overrides[path] for path in above + below if path in source.overrides), None)
    if mistake.line is not None or word is None:
        location, order = (f"{source.name}:{line}" if line else source.name), (False, line)
    else:  # a command-line word replaces everything the file says below its key
        location, order = f"command line: {short(word)}", (True, 0)
    return order, f"{location}: {short(dotted(mistake.path)) or 'the recipe'} {mistake.text}"


def _path_and_value(details: ErrorDetails, values: Any) -> tuple[KeyPath, Any]:
    """The key an error is about and its value, without pydantic's names for the options of a union."""
    path: list[str | int] = []
    value = values
    for step in details["loc"]:
        inside = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        if step not in inside:
            if isinstance(value, dict) and details["type"] in ("missing", "value_error"):
                return (*path, step), value
            continue  # the name of a union's option
        value = value[step]  # type: ignore[index]  # step is one of its keys or positions
        path.append(step)
    if isinstance(value, dict) and details["type"] in ("union_tag_invalid", "union_tag_not_found"):
        tag = details.get("ctx", {})["discriminator"].strip("'")
        return (*path, tag), value.get(tag, value)
    return tuple(path), value


def _sentence(details: ErrorDetails, path: KeyPath, value: Any, source: Source, schema: Schema) -> str:
    node = schema_at(path, schema)
    if node is None:
        return _unknown_key(path, schema)
    if details["type"] in ("missing", "union_tag_not_found") and isinstance(value, dict) and path[-1] not in value:
        return f"must be given. {node['description']}"
    if details["type"] == "extra_forbidden":
        return _key_of_others(path, value, _at(path[:-1], source.values), schema)
    if details["type"] == "value_error" and "ctx" in details:
        return str(details["ctx"]["error"])
    got = shown_value(value)
    written = _at(path, source.written)
    origin = f" (from {written})" if isinstance(written, str) and "${" in written else ""
    return f"must be {requirement(node, schema)}, got {got}{origin}.{_remedy(details['type'], value, node)}"


def _unknown_key(path: KeyPath, schema: Schema) -> str:
    near = nearest_key(path, known_keys(schema))
    if near is not None:
        return f"is not a key of a recipe. Did you mean {near}?"
    known = ", ".join(section_keys(schema_at(path[:-1], schema) or {}, schema))
    free = " Free values belong in variables." if len(path) == 1 else ""
    return f"is not a key of a recipe. {dotted(path[:-1]) or 'A recipe'} holds {known}.{free}"


def _key_of_others(path: KeyPath, value: Any, siblings: dict[str, Any], schema: Schema) -> str:
    """A key that other sections of a union have, and not the one that is meant."""
    union, key = schema_at(path[:-1], schema) or {}, path[-1]
    own, others = (
        meant(union, siblings, schema),
        [section for section in options(union, schema) if key in section["properties"]],
    )
    keys = ", ".join(name for section in own for name in section["properties"])
    return (
        f"must be left out when {tags(own)}, got {shown_value(value)}. Keys are then {keys}; {key} is one when "
        f"{tags(others)}. Leave it out (null on the command line)."
    )


def _remedy(kind: str, value: Any, node: Schema) -> str:
    if kind == "string_type" and isinstance(value, int | float) and _is_text_for(node, str(value)):
        return " Put it in quotes."
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str) and _is_quoted(value):
        return " Remove the quotes."
    of_section = kind in ("model_type", "model_attributes_type")
    return " Remove the line, or write keys below it." if value is None and of_section else ""


def _is_text_for(node: Schema, text: str) -> bool:
    """Whether a key would take the text."""
    texts = [option for option in node.get("anyOf", [node]) if option.get("type") == "string"]
    return any("enum" not in option and re.search(option.get("pattern", ""), text) for option in texts)


def _is_quoted(value: str) -> bool:
    """Whether the text would be a number or a truth value without its quotes."""
    try:
        json.loads(value.lower())
    except ValueError:
        return False
    return True


def _at(path: KeyPath, values: Any) -> Any:
    """The value at a path; where an interpolation stands above it, that interpolation."""
    for step in path:
        if not isinstance(values, dict | list):
            break
        values = values[step]  # type: ignore[index]  # a str step belongs to a dict, an int step to a list
    return values

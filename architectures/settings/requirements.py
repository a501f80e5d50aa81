"""What a value must be, read off a JSON Schema, and what it is: the words of every refusal. No torch."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
PLAIN = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "null": "null"}
SHOWN_CHARACTERS = 80  # of a value, in a message


def requirement(node: Schema, schema: Schema) -> str:
    """What a value must be, as the rest of a sentence: "a number > 0", "fp32 or amp_bf16"."""
    options = [resolved(option, schema) for option in node.get("anyOf", [node])]
    return " or ".join(_one_requirement(option, schema) for option in options)


def resolved(node: Schema, schema: Schema) -> Schema:
    """The node itself, or the section it refers to."""
    return schema["$defs"][node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else node


def shown_value(value: Any) -> str:
    """A value in few words, as YAML writes it."""
    return shown(value) if isinstance(value, str) else short(json.dumps(value, ensure_ascii=False, default=str))


def shown(text: str) -> str:
    """A text in quotes, as much of it as a message holds."""
    return short(repr(text[: 2 * SHOWN_CHARACTERS]))


def short(text: str) -> str:
    """A text, or as much of its beginning as a message holds."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _one_requirement(node: Schema, schema: Schema) -> str:
    kind = node.get("type")
    if "enum" in node or "const" in node:
        return " or ".join(map(str, node.get("enum", [node.get("const")])))
    if kind in PLAIN:
        bounds = " and ".join(f"{sign} {node[bound]}" for bound, sign in BOUNDS.items() if bound in node)
        return f"{PLAIN[kind]} {bounds}".strip()
    if kind == "array":
        return _list_requirement(node, schema)
    if kind == "string":
        return _text_requirement(node)
    keys = ", ".join(node.get("properties", {})) or "keys of your own"
    return f"a section ({keys})"


def _list_requirement(node: Schema, schema: Schema) -> str:
    if "prefixItems" in node:
        items = [requirement(item, schema) for item in node["prefixItems"]]
        return f"a list of {len(items)}, each {items[0]}"
    least = "a list of at least one" if node.get("minItems") else "a list"
    return f"{least}, each {requirement(node['items'], schema)}"


def _text_requirement(node: Schema) -> str:
    if "pattern" in node:
        *others, last = node["examples"]
        examples = f"{', '.join(others)} or {last}" if others else last
        most = f", at most {node['maxLength']} characters," if "maxLength" in node else ""
        return f"{node['title']}{most} such as {examples}"
    return "text that is not empty" if node.get("minLength") else "text"

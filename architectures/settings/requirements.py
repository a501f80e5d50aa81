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
    keys = ", ".join(section_keys(node, schema)) or "keys of your own"
    return " or ".join(dict.fromkeys(_one_requirement(option, schema, keys) for option in options(node, schema)))


def section_keys(node: Schema, schema: Schema) -> list[str]:
    """Names of the keys a section holds, or any section of a union; [] for anything else."""
    return list(dict.fromkeys(name for option in options(node, schema) for name in option.get("properties", {})))


def options(node: Schema, schema: Schema) -> list[Schema]:
    """What a node may be, one by one, references resolved."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return [option for each in node["anyOf"] for option in options(each, schema)] if "anyOf" in node else [node]


def shown_value(value: Any) -> str:
    """A value in few words, as YAML writes it."""
    return shown(value) if isinstance(value, str) else short(json.dumps(value, ensure_ascii=False, default=str))


def shown(text: str) -> str:
    """A text in quotes, as much of it as a message holds."""
    return short(repr(text[: 2 * SHOWN_CHARACTERS]))


def short(text: str) -> str:
    """A text, or as much of its beginning as a message holds."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _one_requirement(node: Schema, schema: Schema, keys: str) -> str:
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

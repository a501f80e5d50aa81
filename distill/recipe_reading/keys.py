"""The keys a recipe may hold, read off its JSON Schema: which there are, and which was meant."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import TaggedUnionSchema

from architectures.settings.requirements import Schema, options
from distill.recipe_reading.yaml_lines import KeyPath

NEAR = 0.7  # closeness from which a suggestion helps more than it misleads; `methd` and `method` have 0.91


class _AnyOf(GenerateJsonSchema):
    """Writes a tagged union like any other: whoever reads it looks at the tags, and a ${...} may stand for one."""

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}


@cache
def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a section, which is read and never changed."""
    return model.model_json_schema(schema_generator=_AnyOf)


def known_keys(schema: Schema) -> dict[str, Schema]:
    """Every dotted key with its own schema, a section before what it holds; [] stands for any list item."""
    known: dict[str, Schema] = {}
    for key, node in _below("", schema, schema):
        known[key] = _either(known[key], node) if key in known else node
    return known


def required_keys(schema: Schema) -> set[str]:
    """The dotted keys that have no default, whichever section of a union is meant."""
    sections = {"": schema, **{f"{key}.": node for key, node in known_keys(schema).items()}}
    return {
        prefix + name
        for prefix, node in sections.items()
        for name in set.intersection(*(set(option.get("required", ())) for option in options(node, schema)))
    }


def schema_at(path: KeyPath, schema: Schema) -> Schema | None:
    """What the schema says of a key, None if it knows no such key."""
    return known_keys(schema).get(_pattern(path)) if path else schema


def nearest_key(path: KeyPath, known: Iterable[str]) -> str | None:
    """The known key most likely meant: alike as a whole, or of like name in another section; None if none is near."""
    name = _pattern(path)

    def closeness(key: str) -> float:
        whole = SequenceMatcher(None, name, key).ratio()
        last = SequenceMatcher(None, name.rsplit(".", 1)[-1], key.rsplit(".", 1)[-1]).ratio()
        return max(whole, 0.95 * last) if last >= 0.5 else 0.0  # two keys of one section share most of their letters

    best = max(known, key=closeness, default="")
    return _with_indexes(best, path) if best and closeness(best) >= NEAR else None


def meant(node: Schema, values: Mapping[str, Any], schema: Schema) -> list[Schema]:
    """The sections that values may be of: of a tagged union the one whose tags they have, or leave out."""
    given = {key: value for key, value in values.items() if value is not None}
    return [
        option
        for option in options(node, schema)
        if "properties" in option
        and all(given.get(key, child.get("default")) == child["const"] for key, child in _tags(option))
    ]


def tags(sections: Iterable[Schema]) -> str:
    """What tells sections of a union from the others: "source is cache and contents is top_k or samples"."""
    values_by_key: dict[str, dict[str, None]] = {}
    for key, child in (tag for section in sections for tag in _tags(section)):
        values_by_key.setdefault(key, {})[child["const"]] = None
    return " and ".join(f"{key} is {' or '.join(values)}" for key, values in values_by_key.items())


def _tags(section: Schema) -> list[tuple[str, Schema]]:
    return [(key, child) for key, child in section["properties"].items() if "const" in child]


def _either(first: Schema, second: Schema) -> Schema:
    """What a key must be that several sections of a union have."""
    if first == second:
        return first
    words, more = first["description"], second["description"]
    words = words if more in words else f"{words.removesuffix('.')}; {more}"
    return {**second, **first, "anyOf": [*first.get("anyOf", [first]), second], "description": words}


def _below(prefix: str, node: Schema, schema: Schema) -> Iterator[tuple[str, Schema]]:
    for inside in options(node, schema):
        for name, child in inside.get("properties", {}).items():
            key = f"{prefix}.{name}".removeprefix(".")
            yield key, child
            yield from _below(key, child, schema)
        for child in [*inside.get("prefixItems", [])[:1], *([inside["items"]] if "items" in inside else [])]:
            yield f"{prefix}[]", child
            yield from _below(f"{prefix}[]", child, schema)


def _pattern(path: KeyPath) -> str:
    return "".join("[]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _with_indexes(key: str, path: KeyPath) -> str:
    """The key with the list positions of the path that was written, as far as both go through the same lists."""
    parts = key.split("[]")
    indexes = [step for step in path if isinstance(step, int)] + [0] * len(parts)
    return "".join(f"{part}[{index}]" for part, index in zip(parts[:-1], indexes, strict=False)) + parts[-1]

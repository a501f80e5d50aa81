"""The keys that a recipe may hold, read from its JSON Schema. No torch."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from functools import cache
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import TaggedUnionSchema

Schema: TypeAlias = Mapping[str, Any]

NEAR = 0.7  # closeness from which a suggestion helps more than it misleads; `methd` and `method` have 0.91
MAX_CHARS = 80  # of a value in a message


class _AnyOf(GenerateJsonSchema):
    """Writes a tagged union like any other, since a ${...} may stand for the tag."""

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}


@cache
def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a section, which is read and never changed."""
    return model.model_json_schema(schema_generator=_AnyOf)


def options(node: Schema, schema: Schema) -> list[Schema]:
    """The alternatives of a node one by one, references resolved."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return [option for each in node["anyOf"] for option in options(each, schema)] if "anyOf" in node else [node]


def known_keys(schema: Schema) -> dict[str, Schema]:
    """Every dotted key with its own schema, a section before its keys; [] stands for any list item."""
    known: dict[str, Schema] = {}
    for key, node in _below("", schema, schema):
        known.setdefault(key, node)
    return known


def _below(prefix: str, node: Schema, schema: Schema) -> Iterator[tuple[str, Schema]]:
    for option in options(node, schema):
        for name, child in option.get("properties", {}).items():
            key = f"{prefix}.{name}".removeprefix(".")
            yield key, child
            yield from _below(key, child, schema)
        for child in [*option.get("prefixItems", [])[:1], *([option["items"]] if "items" in option else [])]:
            yield from _below(f"{prefix}[]", child, schema)


def nearest_key(path: tuple[str | int, ...], known: Iterable[str]) -> str | None:
    """The known key most likely meant: alike as a whole, or of like name in another section; None if none is near."""
    name = ".".join(str(step) for step in path if isinstance(step, str))

    def closeness(key: str) -> float:
        plain = key.replace("[]", "")
        whole = SequenceMatcher(None, name, plain).ratio()
        last = SequenceMatcher(None, name.rsplit(".", 1)[-1], plain.rsplit(".", 1)[-1]).ratio()
        return max(whole, 0.95 * last) if last >= 0.5 else 0.0  # two keys of one section share most of their letters

    best = max(known, key=closeness, default="")
    return best if best and closeness(best) >= NEAR else None


def short(text: str) -> str:
    """A text, or its beginning if it is long."""
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}..."

"""The keys a recipe may hold, read off its JSON Schema: which there are, and which was meant."""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher

from architectures.settings.requirements import Schema, resolved
from distill.recipe_reading.yaml_lines import KeyPath

NEAR = 0.7  # closeness from which a suggestion helps more than it misleads; `methd` and `method` have 0.91


def known_keys(schema: Schema) -> dict[str, Schema]:
    """Every dotted key with its own schema, a section before what it holds; [] stands for any list item."""
    return dict(_below("", schema, schema))


def required_keys(schema: Schema) -> set[str]:
    """The dotted keys that have no default."""
    sections = {"": schema, **{f"{key}.": resolved(node, schema) for key, node in known_keys(schema).items()}}
    return {prefix + name for prefix, node in sections.items() for name in node.get("required", [])}


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


def section_keys(node: Schema, schema: Schema) -> list[str]:
    """Names of the keys a section holds, [] for anything else."""
    options = [resolved(option, schema) for option in node.get("anyOf", [node])]
    return [name for option in options for name in option.get("properties", {})]


def _below(prefix: str, node: Schema, schema: Schema) -> Iterator[tuple[str, Schema]]:
    for option in node.get("anyOf", [node]):
        inside = resolved(option, schema)
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

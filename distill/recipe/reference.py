"""Write the key tables of docs/recipes.md, recipes/recipe.schema.json and recipes/scorecard.schema.json.

Editors use the schema to complete and check recipes.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from architectures.console import Table, TableSection, markdown, replace_between
from architectures.files import write_json, write_text
from architectures.settings import Schema, known_keys, options, schema_of
from distill.recipe.recipe import Recipe
from eval.scorecard_schema import Scorecard

REFERENCE_PATH = Path(__file__).parents[2] / "docs" / "recipes.md"
BEGIN, END = "<!-- keys: written by `python -m distill.recipe.reference` -->", "<!-- end of keys -->"
MAX_NAMES = 8  # listed as values; for more, the description names the command or page that lists them
BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


def write_reference(schema: Schema, path: Path = REFERENCE_PATH) -> None:
    write_text(replace_between(path.read_text(encoding="utf-8"), BEGIN, END, key_reference(schema)), path)


def key_reference(schema: Schema) -> str:
    """Format every key with its values, default and description, one Markdown table per section.

    A section under several keys, such as a source of prompts, is listed once, below the first of them.
    """
    keys = known_keys(schema)
    first = {definition: key for key, node in reversed(keys.items()) if (definition := item_of(node))}
    items = {key: definition for key, node in keys.items() if (definition := item_of(node))}
    repeated = {key: f"{first[definition]}[]" for key, definition in items.items() if first[definition] != key}
    keys = {key: node for key, node in keys.items() if not key.startswith(tuple(f"{each}[]" for each in repeated))}
    sections = [name for name in schema["properties"] if is_section(keys[name], schema)]
    named = {"Of the whole run": [name for name in schema["properties"] if name not in sections]}
    for section in sections:
        named[f"`{section}`"] = [
            key for key in keys if key.startswith(f"{section}.") and not is_section(keys[key], schema)
        ]
    rows = {title: [row(name, keys[name], schema, repeated) for name in names] for title, names in named.items()}
    tables = [TableSection(title, [Table(("key", "value", "default", "meaning"), rows[title])]) for title in rows]
    return markdown(*tables, level=3)


def is_section(node: Schema, schema: Schema) -> bool:
    return any("properties" in option for option in options(node, schema))


def item_of(node: Schema) -> str | None:
    """Return the schema definition of a list's items; None if the key is not a list of sections."""
    return node.get("items", {}).get("$ref")


def row(name: str, node: Schema, schema: Schema, repeated: Mapping[str, str]) -> list[str]:
    default = f"`{json.dumps(node['default'])}`" if "default" in node else ""
    meaning = {**options(node, schema)[0], **node}.get("description", "")
    meaning += f" Keys as in `{repeated[name]}`." if name in repeated else ""
    return [cell.replace("<", "&lt;") for cell in (f"`{name}`", values_of(node, schema), default, meaning)]


def values_of(node: Schema, schema: Schema) -> str:
    """Describe the values of a key: "number > 0", "fp32, amp_bf16"."""
    return ", ".join(dict.fromkeys(one_kind(option, schema) for option in options(node, schema)))


def one_kind(node: Schema, schema: Schema) -> str:
    if "enum" in node or "const" in node:
        names = list(map(str, node.get("enum", [node.get("const")])))
        return ", ".join(names) if len(names) <= MAX_NAMES else "name"
    if node.get("type") == "array":
        items = node.get("items") or (node.get("prefixItems") or [{}])[0]
        kind = values_of(items, schema) if items else "section"
        return "list" if kind == "section" else f"list of {kind}"
    if "title" in node and "examples" in node:
        return f"{node['title']} ({', '.join(map(str, node['examples']))})"
    bounds = " and ".join(f"{sign} {node[bound]}" for bound, sign in BOUNDS.items() if bound in node)
    kind = "section" if node.get("type") in ("object", None) else "text" if node["type"] == "string" else node["type"]
    return f"{kind} {bounds}".strip()


SCHEMA_PATH = Path(__file__).parents[2] / "recipes" / "recipe.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}", "description": "A ${key} that refers to another key."}


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipe files, which allows ${...} for every value."""
    schema = deepcopy(schema_of(Recipe))
    for section in (schema, *schema["$defs"].values()):
        section["properties"] = {name: _or_interpolation(node) for name, node in section["properties"].items()}
    return {"$schema": DIALECT, **schema}


def schemas() -> dict[str, dict[str, Any]]:
    scorecard = {"$schema": DIALECT, **TypeAdapter(Scorecard).json_schema()}
    return {"recipe.schema.json": recipe_schema(), "scorecard.schema.json": scorecard}


def write_schemas() -> None:
    for name, schema in schemas().items():
        write_json(schema, SCHEMA_PATH.with_name(name))


def _or_interpolation(node: dict[str, Any]) -> dict[str, Any]:
    """Allow an interpolation as an alternative; plain strings allow it anyway."""
    if node.get("type") == "string" and "pattern" not in node and not node.keys() & {"enum", "const"}:
        return node
    notes = {name: node[name] for name in ("title", "description", "default") if name in node}
    return {**notes, "anyOf": [{name: node[name] for name in node if name not in notes}, INTERPOLATION]}


if __name__ == "__main__":
    write_schemas()
    write_reference(schema_of(Recipe))

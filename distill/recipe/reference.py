"""The tables of docs/recipes.md, written from the models that check recipes."""

import json
from pathlib import Path

from architectures.files.atomic import write_text
from architectures.settings.schema import Schema, known_keys, options
from architectures.tables import Section, Table, markdown, replace_between

REFERENCE_PATH = Path(__file__).parents[2] / "docs" / "recipes.md"
BEGIN, END = "<!-- keys: written by `python -m distill.commands.recipe_reference` -->", "<!-- end of keys -->"
BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


def write_reference(schema: Schema, path: Path = REFERENCE_PATH) -> None:
    """Put the tables of all keys between the marks of a page."""
    write_text(replace_between(path.read_text(encoding="utf-8"), BEGIN, END, key_reference(schema)), path)


def key_reference(schema: Schema) -> str:
    """Every key with its values, default and meaning, one Markdown table per section."""
    keys = known_keys(schema)
    sections = [name for name in schema["properties"] if is_section(keys[name], schema)]
    named = {"Of the whole run": [name for name in schema["properties"] if name not in sections]}
    for section in sections:
        named[f"`{section}`"] = [
            key for key in keys if key.startswith(f"{section}.") and not is_section(keys[key], schema)
        ]
    rows = {title: [row(name, keys[name], schema) for name in names] for title, names in named.items()}
    tables = [Section(title, [Table(("key", "value", "default", "meaning"), rows[title])]) for title in rows]
    return markdown(*tables, level=3)


def is_section(node: Schema, schema: Schema) -> bool:
    """Whether a key holds keys of its own, in any of its forms."""
    return any("properties" in option for option in options(node, schema))


def row(name: str, node: Schema, schema: Schema) -> list[str]:
    """One key of a table."""
    default = f"`{json.dumps(node['default'])}`" if "default" in node else ""
    meaning = {**options(node, schema)[0], **node}.get("description", "")
    return [cell.replace("<", "&lt;") for cell in (f"`{name}`", values_of(node, schema), default, meaning)]


def values_of(node: Schema, schema: Schema) -> str:
    """What a key may hold: "number > 0", "fp32 or amp_bf16"."""
    return " or ".join(dict.fromkeys(one_kind(option, schema) for option in options(node, schema)))


def one_kind(node: Schema, schema: Schema) -> str:
    """One of the forms of a value."""
    if "enum" in node or "const" in node:
        return " or ".join(map(str, node.get("enum", [node.get("const")])))
    if node.get("type") == "array":
        items = node.get("items") or (node.get("prefixItems") or [{}])[0]
        return f"list of {values_of(items, schema)}" if items else "list"
    if "title" in node and "examples" in node:
        return f"{node['title']}, as {' or '.join(map(str, node['examples']))}"
    bounds = " and ".join(f"{sign} {node[bound]}" for bound, sign in BOUNDS.items() if bound in node)
    kind = "section" if node.get("type") in ("object", None) else "text" if node["type"] == "string" else node["type"]
    return f"{kind} {bounds}".strip()

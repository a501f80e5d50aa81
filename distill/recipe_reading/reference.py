"""The tables of docs/recipes.md, written from the same models that check recipes."""

import json
from pathlib import Path

from architectures.files.atomic import write_text
from architectures.settings.requirements import Schema, options, requirement, section_keys
from architectures.tables import Section, Table, markdown, replace_between
from distill.recipe_reading.keys import known_keys, required_keys

REFERENCE_PATH = Path(__file__).parents[2] / "docs" / "recipes.md"
BEGIN, END = "<!-- keys: written by `python -m distill.commands.recipe_reference` -->", "<!-- end of keys -->"


def write_reference(schema: Schema, path: Path = REFERENCE_PATH) -> None:
    """Put the tables of all keys between the marks of a page."""
    write_text(replace_between(path.read_text(encoding="utf-8"), BEGIN, END, key_reference(schema)), path)


def key_reference(schema: Schema) -> str:
    """Every key with what it must be, its default and its meaning, one Markdown table per section."""
    top = schema["properties"]
    sections = [name for name in top if section_keys(top[name], schema)]
    named = {"Of the whole run": [name for name in top if name not in sections]}
    for section in sections:
        named[f"`{section}`"] = [key for key in known_keys(schema) if key.startswith(f"{section}.")]
    return markdown(*(keys_section(title, names, schema) for title, names in named.items()), level=3)


def keys_section(title: str, names: list[str], schema: Schema) -> Section:
    """The keys of one section; a section inside it only if its default is more than the defaults of its keys."""
    rows = []
    keys, required = known_keys(schema), required_keys(schema)
    for name in names:
        node = keys[name]
        inside = section_keys(node, schema)
        if name.endswith("[]") or (inside and "anyOf" not in node and set(node.get("default", ())) == set(inside)):
            continue
        default = (
            f"`{json.dumps(node['default'])}`" if "default" in node else "must be given" if name in required else ""
        )
        cells = (
            f"`{name}`",
            requirement(node, schema),
            default,
            {**options(node, schema)[0], **node}.get("description", ""),
        )
        rows.append([cell.replace("<", "&lt;") for cell in cells])
    return Section(title, [Table(("key", "value", "default", "meaning"), rows)])

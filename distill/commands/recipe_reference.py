"""`python -m distill.commands.recipe_reference` writes what is derived from the models of recipes.

That is recipes/recipe.schema.json, which editors use to complete and check recipes, the tables of docs/recipes.md, and
the hours in the headers of recipes.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

from architectures.files.atomic import write_json
from distill.commands.recipe_headers import write_headers
from distill.recipe.recipe import Recipe
from distill.recipe_reading.keys import schema_of
from distill.recipe_reading.reference import write_reference

SCHEMA_PATH = Path(__file__).parents[2] / "recipes" / "recipe.schema.json"
INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}", "description": "A ${key} filled in from another key."}


def recipe_schema() -> dict[str, Any]:
    """The JSON Schema of recipes as people write them, with ${...} allowed wherever a value may stand."""
    schema = deepcopy(schema_of(Recipe))
    for section in (schema, *schema["$defs"].values()):
        section["properties"] = {name: _or_interpolation(node) for name, node in section["properties"].items()}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def write_schema(path: Path = SCHEMA_PATH) -> None:
    """Write the JSON Schema of recipes."""
    write_json(recipe_schema(), path)


def _or_interpolation(node: dict[str, Any]) -> dict[str, Any]:
    """The node with an interpolation as one more option; plain text allows one anyway."""
    if node.get("type") == "string" and "pattern" not in node and not node.keys() & {"enum", "const"}:
        return node
    notes = {name: node[name] for name in ("title", "description", "default") if name in node}
    return {**notes, "anyOf": [{name: node[name] for name in node if name not in notes}, INTERPOLATION]}


if __name__ == "__main__":
    write_schema()
    write_reference(schema_of(Recipe))
    write_headers()

"""`python -m distill.commands.recipe_reference` writes what is derived from the models of recipes and scorecards.

That is recipes/recipe.schema.json, which editors use to complete and check recipes, recipes/scorecard.schema.json and
the tables of docs/recipes.md.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from architectures.files.atomic import write_json
from architectures.settings.schema import schema_of
from distill.recipe.recipe import Recipe
from distill.recipe.reference import write_reference
from eval.scorecard_schema import Scorecard

SCHEMA_PATH = Path(__file__).parents[2] / "recipes" / "recipe.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}", "description": "A ${key} filled in from another key."}


def recipe_schema() -> dict[str, Any]:
    """The JSON Schema of recipes as people write them, with ${...} allowed wherever a value may stand."""
    schema = deepcopy(schema_of(Recipe))
    for section in (schema, *schema["$defs"].values()):
        section["properties"] = {name: _or_interpolation(node) for name, node in section["properties"].items()}
    return {"$schema": DIALECT, **schema}


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schemas of recipes and scorecards, by file name."""
    scorecard = {"$schema": DIALECT, **TypeAdapter(Scorecard).json_schema()}
    return {"recipe.schema.json": recipe_schema(), "scorecard.schema.json": scorecard}


def write_schemas() -> None:
    for name, schema in schemas().items():
        write_json(schema, SCHEMA_PATH.with_name(name))


def _or_interpolation(node: dict[str, Any]) -> dict[str, Any]:
    """The node with an interpolation as one more option; plain text allows one anyway."""
    if node.get("type") == "string" and "pattern" not in node and not node.keys() & {"enum", "const"}:
        return node
    notes = {name: node[name] for name in ("title", "description", "default") if name in node}
    return {**notes, "anyOf": [{name: node[name] for name in node if name not in notes}, INTERPOLATION]}


if __name__ == "__main__":
    write_schemas()
    write_reference(schema_of(Recipe))

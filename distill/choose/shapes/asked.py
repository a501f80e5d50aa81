"""The candidates that a command asks for."""

from dataclasses import replace
from pathlib import Path

from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from distill.choose.shapes.candidates import Asked, Wanted, asked_shapes
from distill.recipe.recipe import Recipe
from distill.run.progressive import source_folder


def shapes_in(target: Path, recipe: Recipe, wanted: Wanted) -> Asked:
    """The shapes that were asked for, to be cut out of the target in a folder, or out of the recipe's own source."""
    folders = (source_folder(recipe) or target, target)
    source, teacher = (Shape.from_config(read_config(each), where=str(each / "config.json")) for each in folders)
    return asked_shapes(recipe, replace(source, vocab=teacher.vocab), wanted)

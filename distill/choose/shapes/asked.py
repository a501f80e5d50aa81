"""The candidates that a command asks for."""

from dataclasses import replace
from pathlib import Path

from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from distill.choose.shapes.candidates import Candidate, candidates_of
from distill.choose.shapes.settings import ChooseSettings
from distill.recipe.recipe import Recipe
from distill.run.progressive import source_folder


def candidates_in(target: Path, recipe: Recipe, settings: ChooseSettings) -> list[Candidate]:
    """The shapes that were asked for, to be cut out of the target in a folder, or out of the recipe's own source."""
    folders = (source_folder(recipe) or target, target)
    source, teacher = (Shape.from_config(read_config(each), where=str(each / "config.json")) for each in folders)
    layers = settings.layers or [each.layers for each in settings.alphas]
    named = dict.fromkeys(each.size for each in settings.alphas if each.size is not None)
    sizes = settings.head_sizes or list(named)
    return candidates_of(recipe, replace(source, vocab=teacher.vocab), layers, settings.most_parameters, sizes)

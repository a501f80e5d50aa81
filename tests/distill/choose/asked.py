"""Candidates of few words, for tests of what becomes of them."""

import widedraft
from distill.choose.shapes.candidates import Wanted, asked_shapes
from tests.distill.run.test_progressive import TINY


def candidates_of(recipe, target, layers, most_parameters=None, vocabularies=(), **widths):
    """The candidates alone."""
    wanted = Wanted(layers, vocabularies, widths, most_parameters)
    return asked_shapes(recipe, target, wanted).candidates


def run_choose(recipe_file, *words) -> int:
    """The exit code of `widedraft choose` on a tiny recipe."""
    return widedraft.main(["choose", str(recipe_file), *TINY, *map(str, words)])

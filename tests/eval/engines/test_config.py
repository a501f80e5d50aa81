"""Which settings go with which engine, in a recipe and on a command line."""

import pytest

from distill.recipe.recipe import RecipeError, load_recipe, load_scoring
from tests.rejections import rejects

RECIPE = """
run_name: a
target: {path: t}
architecture: {layers: 1, method: first_last}
data: {prompts: [{path: p.jsonl}]}
"""
HERE = "generate.urls=[http://localhost:8000]"


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "a.yaml").write_text(RECIPE)
    return tmp_path / "a.yaml"


def test_addresses_are_those_of_servers(recipe):
    words = ("generate.engine=endpoint", "generate.urls=[http://a:1/v1/,https://b]")
    assert load_recipe(recipe, words).generate.urls == ("http://a:1", "https://b")
    assert load_scoring(words).generate.urls == ("http://a:1", "https://b")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("generate.engine=endpoint",), "generate.urls"),
        (("generate.engine=vllm",), "generate.python"),
        ((HERE,), "generate.urls"),
        (("generate.engine=endpoint", HERE, "generate.tensor_parallel=2"), "generate.tensor_parallel"),
        (("generate.engine=vllm", "generate.python=p", "generate.model=t"), "generate.model"),
        (("generate.engine=endpoint", "generate.urls=[localhost:8000]"), "generate.urls"),
        (("generate.engine=endpoint", "generate.urls=[http://key@a:8000]"), "OPENAI_API_KEY"),
    ],
)
def test_what_does_not_go_together_is_refused(recipe, words, named):
    with rejects(named, error=RecipeError):
        load_recipe(recipe, words)

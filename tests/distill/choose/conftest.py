"""A recipe of a tiny target, and step times in which its depths differ."""

import pytest

import widedraft
from architectures.hub import read_config
from architectures.shapes import Shape
from distill.choose import search
from distill.recipe.recipe import load_recipe
from tests.distill.recipe_files import write_recipe
from tests.distill.run.test_progressive import TINY
from tests.eval.records import latency


@pytest.fixture
def recipe_file(tiny_target, tmp_path):
    cut = "{method: first_last, layers: 3, intermediate: 96, width_method: random}"
    data = "data: {{prompts: [{{path: {prompts}}}], num_eval_prompts: 2}}\n"
    return write_recipe(tmp_path, tiny_target, cut, data, num_prompts=6, run="out")


@pytest.fixture
def run_choose(recipe_file):
    """run_choose(*words) -> the exit code of `widedraft choose` on the tiny recipe."""
    return lambda *words: widedraft.main(["choose", str(recipe_file), *TINY, *map(str, words)])


@pytest.fixture
def recipe(recipe_file):
    return load_recipe(recipe_file)


@pytest.fixture
def source(tiny_target):
    return Shape.from_config(read_config(tiny_target))


@pytest.fixture
def step_times(monkeypatch):
    """Step times of models so small say nothing: here three layers take longer than the target."""

    def steps(_recipe, _target, candidates, settings):
        times = {one.name: ({1: 4.0, 2: 6.0, 3: 60.0}[one.shape.layers],) * 2 for one in candidates}
        timed = latency(40.0, {k: 40.0 + 2 * k for k in (1, 2, 3)}, times, 0.5)
        return timed.model_copy(update={"batch": settings.batch_size, "context_tokens": settings.context})

    monkeypatch.setattr(search, "measured_steps", steps)

"""What a recipe may say of a vocabulary, and what it is told otherwise; and what a debug run makes of it."""

import json
from pathlib import Path

import pytest

from architectures.hub import read_config
from architectures.pruning.plan import plan_pruning
from architectures.shapes import Shape
from architectures.vocabulary import read_draft_vocabulary
from architectures.vocabulary_head import head_ids
from distill.check import planned_shapes
from distill.debug import begin_debug, debug_recipe, tiny_run
from distill.pipeline import prune_stage
from distill.recipe.recipe import Recipe, load_recipe
from distill.run import Run
from eval.models import load_model

RECIPE = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2, vocabulary: VOCABULARY}
data: {self_written_prompts: 100}
"""


@pytest.mark.parametrize(
    ("vocabulary", "key"),
    [("{}", ""), ("{from: text}", ""), ("{from: ''}", ".from"), ("{size: 9, origin: text}", ".origin")],
)
def test_what_makes_no_sense_is_reported_at_its_key(mistakes, vocabulary, key):
    [line] = mistakes(RECIPE.replace("VOCABULARY", vocabulary))
    assert line.startswith(f"r.yaml:3: architecture.vocabulary{key} ")


def recipe_of(architecture: dict) -> Recipe:
    return Recipe.model_validate(
        {
            "run_name": "real",
            "target": {"path": "meta-llama/Llama-2-7b-hf"},
            "architecture": {"layers": 5, **architecture},
            "data": {"prompts": [{"name": "owner/prompts"}]},
        }
    )


def shrunk(architecture: dict) -> Recipe:
    real = recipe_of(architecture)
    cut = planned_shapes(real)
    return debug_recipe(real, tiny_run(real, cut.target, cut.source))


@pytest.mark.parametrize(("size", "tiny"), [(None, None), (2, 259)])
def test_a_debug_run_has_a_list_of_its_own(tmp_path, size, tiny):
    (tmp_path / "private.json").write_text("[2, 5, 9]")
    small = shrunk({"vocabulary": {"size": size, "from": str(tmp_path / "private.json")}})
    wanted = small.architecture.vocabulary
    assert (wanted.size, wanted.origin) == (tiny, "runs/real-debug/ids.json")
    assert "private" not in json.dumps(small.model_dump(mode="json"))


def test_what_a_plan_makes_small_stays_small(tmp_path):
    whole = recipe_of({"layers": 16, "method": "first_last"})
    plan = plan_pruning(planned_shapes(whole).source, whole.architecture, seed=0)
    for name, each in (("small", plan.with_vocabulary(tuple(range(99)))), ("whole", plan)):
        (tmp_path / f"{name}.json").write_text(each.to_json())
    small = shrunk({"layers": None, "plan": str(tmp_path / "small.json")}).architecture.vocabulary
    assert small is not None
    assert small.origin == "runs/real-debug/ids.json"
    assert shrunk({"layers": None, "plan": str(tmp_path / "whole.json")}).architecture.vocabulary is None


@pytest.fixture
def debug(tmp_path, monkeypatch, tiny_target):
    """debug(architecture, ...) -> the recipe of its debug run, with all it reads."""
    monkeypatch.chdir(tmp_path)

    def make(architecture: dict, **sections) -> Recipe:
        recipe = {
            "run_name": "demo",
            "target": {"path": str(tiny_target)},
            "architecture": {"method": "first_last", "layers": 2, **architecture},
            "data": {"self_written_prompts": 9},
            **sections,
        }
        Path("demo.yaml").write_text(json.dumps(recipe))
        return load_recipe(begin_debug(Path("demo.yaml"), []))

    return make


@pytest.mark.parametrize("named", ["list", "text"])
def test_a_debug_run_cuts_a_small_head(debug, tmp_path, named):
    (tmp_path / "ids.json").write_text("[2, 5, 9]")
    text = {"domains": [{"name": "wiki", "dataset": "owner/wiki"}]} if named == "text" else None
    wanted = {"size": 260, "from": "text"} if named == "text" else {"from": "ids.json"}
    recipe = debug({"vocabulary": wanted}, text=text)
    prune_stage(Run.of(recipe))
    init = Path(recipe.run_dir) / "init"
    assert read_draft_vocabulary(init).ids == tuple(range(259))
    assert Shape.from_config(read_config(init)) == planned_shapes(recipe).draft
    assert planned_shapes(recipe).draft.head_vocab < planned_shapes(recipe).target.vocab


def test_a_source_with_a_small_head_becomes_a_tiny_one_with_a_small_head(debug, tmp_path):
    (tmp_path / "ids.json").write_text("[2, 5, 9]")
    first = debug({"layers": 3, "vocabulary": {"from": "ids.json"}})
    prune_stage(Run.of(first))
    source = {"source": str(Path(first.run_dir) / "init")}
    for wanted in (None, {"from": str(Path(first.run_dir) / "init")}):
        again = debug({**source, "vocabulary": wanted}, run_name="again")
        tiny = Path(again.run_dir) / "tiny-source"
        assert len(head_ids(load_model(tiny, dtype="float32", device="cpu"))) == 259
        prune_stage(Run.of(again))
        assert read_draft_vocabulary(Path(again.run_dir) / "init").ids == tuple(range(259))

"""From a recipe to a plan: scores are computed once, added to, and made again when what they came from changed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from architectures.hub import read_config
from architectures.pruning.plan import PLAN_NAME, SCORES_NAME, load_scores
from architectures.shapes import Shape
from architectures.sharing import Share
from distill.data.training_data import SelfWriting
from distill.pipeline import generate_stage, prune_stage, recipe_plan
from distill.recipe.recipe import Recipe
from distill.run import Run
from distill.stage_inputs import prune_inputs
from eval.models import load_model
from eval.prompts import Prompt
from tests.rejections import rejects


@pytest.fixture
def scores_file(tmp_path) -> Path:
    return tmp_path / "run" / "scores" / SCORES_NAME


@pytest.mark.parametrize("method", ["block_influence", "greedy", "merge"])
def test_a_target_shows_where_it_runs_what_it_shows_on_the_processor(make_recipe, device, processor_only, method):
    """float32: the same layers, heads and channels are kept, and the draft's logits are the processor's within 1e-4."""
    recipe = make_recipe(layers=2, intermediate=96, heads=2, hidden=48, method=method)
    expected = recipe.model_copy(update={"run_dir": f"{recipe.run_dir}-expected"})
    prune_stage(Run.of(recipe))
    with processor_only():
        prune_stage(Run.of(expected))
    plans = [(Path(each.run_dir) / "init" / PLAN_NAME).read_text() for each in (recipe, expected)]
    assert plans[0] == plans[1]
    assert json.loads(plans[0])["method"] == method
    shape = Shape.from_config(read_config(Path(recipe.run_dir) / "init"))
    assert (shape.layers, shape.intermediate, shape.heads, shape.kv_heads, shape.hidden) == (2, 96, 2, 1, 48)
    ids = torch.arange(3, 40)[None]
    here, there = (load_model(Path(recipe.run_dir) / "init", dtype="float32", device=each) for each in (device, "cpu"))
    torch.testing.assert_close(here(ids.to(device)).logits.cpu(), there(ids).logits, rtol=1e-4, atol=1e-4)


def test_pure_methods_look_at_no_text(make_recipe, tiny_target, scores_file):
    recipe = make_recipe(layers=2, calibration={"text": "/nowhere.txt"})
    assert recipe_plan(Run.of(recipe), tiny_target).source_layers == (0, 3)
    assert not scores_file.exists()


def test_scores_are_computed_once_for_every_shape(make_recipe, tiny_target, scores_file, capsys):
    recipe_plan(Run.of(make_recipe(layers=2, method="block_influence")), tiny_target)
    written = scores_file.stat().st_mtime_ns
    recipe_plan(Run.of(make_recipe(layers=3, intermediate=64, method="block_influence")), tiny_target)

    assert scores_file.stat().st_mtime_ns == written
    assert "computed (block_influence_L)" in capsys.readouterr().out


def test_a_method_that_needs_more_adds_to_the_file(make_recipe, tiny_target, scores_file):
    recipe_plan(Run.of(make_recipe(layers=2, method="greedy")), tiny_target)
    before = load_scores(scores_file).arrays
    recipe_plan(Run.of(make_recipe(layers=2, method="merge")), tiny_target)
    after = load_scores(scores_file).arrays

    assert set(before) == {"removal_order"}
    assert set(after) == {"removal_order", "merge_order"}
    assert np.array_equal(before["removal_order"], after["removal_order"])


def test_other_text_or_another_number_type_makes_other_scores(make_recipe, tiny_target, scores_file):
    found = []
    for changed in ({}, {"calibration": {"tokens": 96}}, {"target": {"dtype": "bfloat16"}}):
        recipe_plan(Run.of(make_recipe(layers=2, method="block_influence", **changed)), tiny_target)
        found.append(tuple(load_scores(scores_file).arrays["block_influence_L"]))
    assert len(set(found)) == 3


def test_a_text_file_and_a_file_of_prompts_can_calibrate(make_recipe, tiny_target, tmp_path, scores_file):
    text, prompts = tmp_path / "text.txt", tmp_path / "more.jsonl"
    text.write_text("All good things are three. " * 20)
    prompts.write_text("".join(json.dumps({"question": f"Why {i}?"}) + "\n" for i in range(20)))
    found = []
    for file in (text, prompts):
        recipe_plan(
            Run.of(make_recipe(layers=2, method="block_influence", calibration={"text": str(file)})), tiny_target
        )
        found.append(load_scores(scores_file).arrays["block_influence_L"])
    assert not np.array_equal(*found)


def test_what_the_recipe_does_not_look_at_does_not_count(make_recipe, tiny_target, tmp_path):
    plain = prune_inputs(Run.of(make_recipe(layers=2)))
    assert plain == prune_inputs(Run.of(make_recipe(layers=2, scores="elsewhere", calibration={"tokens": 80})))
    scored = prune_inputs(Run.of(make_recipe(layers=2, method="greedy")))
    assert scored.keys() - plain.keys() == {"architecture.calibration"}
    other = prune_inputs(Run.of(make_recipe(layers=2, method="greedy", calibration={"tokens": 80})))
    assert other["architecture.calibration"] != scored["architecture.calibration"]
    assert prune_inputs(Run.of(make_recipe(layers=2, method="random")))["seed"] == 17


def test_another_plan_in_the_same_place_is_noticed(make_recipe, tiny_target, tmp_path):
    inputs = []
    for layers in (2, 3):
        plan = recipe_plan(Run.of(make_recipe(layers=layers)), tiny_target)
        (tmp_path / "plan.json").write_text(plan.to_json())
        inputs.append(prune_inputs(Run.of(make_recipe(plan=str(tmp_path / "plan.json")))))
    assert inputs[0] != inputs[1]


def test_a_plan_is_taken_as_it_is_for_its_own_target_only(make_recipe, make_checkpoint, tmp_path, capsys):
    recipe = make_recipe(layers=2, intermediate=96, width_method="random")
    prune_stage(Run.of(recipe))
    plan_file = tmp_path / "run" / "init" / PLAN_NAME

    again = make_recipe(plan=str(plan_file)).model_copy(update={"run_dir": str(tmp_path / "again")})
    prune_stage(Run.of(again))
    first, second = (tmp_path / run / "init" / "model.safetensors" for run in ("run", "again"))
    assert first.read_bytes() == second.read_bytes()

    other = recipe.target.model_copy(update={"path": str(make_checkpoint(seed=9))})
    with rejects("init/plan.json"):
        prune_stage(Run.of(again.model_copy(update={"target": other, "run_dir": str(tmp_path / "third")})))


@pytest.mark.parametrize("with_source", [False, True])
def test_without_prompts_the_targets_own_are_calibrated_on_where_the_responses_will_look(
    make_recipe, make_checkpoint, tiny_target, tmp_path, monkeypatch, with_source
):
    asked = []

    def write(target: Path, count: int, out: Path, settings: SelfWriting, _: Share) -> list[Prompt]:
        asked.append((target, count, out, settings))
        return [Prompt(f"self-written:{n}", ({"role": "user", "content": f"Why {n}?"},)) for n in range(count)]

    monkeypatch.setattr("distill.data.training_data.write_own_prompts", write)
    data = {"prompts": (), "self_written_prompts": 20, "num_eval_prompts": 2, "max_new_tokens": 8}
    of_source = {"source": str(make_checkpoint(seed=9))} if with_source else {}
    recipe = make_recipe(layers=2, method="block_influence", **of_source)
    recipe = Recipe.model_validate({**recipe.model_dump(mode="json"), "data": data})
    prune_stage(Run.of(recipe))
    generate_stage(Run.of(recipe))
    assert asked[0] == asked[1]
    assert asked[0][:3] == (tiny_target, 20, tmp_path / "run" / "data")
    assert prune_inputs(Run.of(recipe)) != prune_inputs(Run.of(recipe.model_copy(update={"seed": 18})))

"""The shape of a recipe is asked about before it is cut: `widedraft check`, and `widedraft preflight RECIPE`."""

import json
from pathlib import Path

import pytest

import widedraft
from architectures.compatibility import LABELS, check
from distill.check import planned_pair, planned_shapes
from distill.debug import debug_recipe, tiny_run
from distill.recipe.recipe import load_recipe
from distill.run import Run
from distill.stage_inputs import draft_inputs

RECIPE = """\
run_name: demo
run_dir: run
target: {path: TARGET}
architecture: {layers: 2, method: first_last}
data: {prompts: [{path: prompts.jsonl}], num_eval_prompts: 2, max_seq_len: 100, max_new_tokens: 40}
"""
ENGINES = "export.engines=[vllm, llama.cpp]"


@pytest.fixture
def recipe(tmp_path, tiny_target, monkeypatch):
    """recipe("key=value", ...) -> a recipe of two of four layers, in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("demo.yaml").write_text(RECIPE.replace("TARGET", str(tiny_target)), encoding="utf-8")
    rows = [json.dumps({"prompt": f"Count to {number}."}) for number in range(12)]
    Path("prompts.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return lambda *overrides: load_recipe("demo.yaml", overrides)


def test_a_reduced_vocabulary_that_can_be_exported_in_a_form_is_not_refused(recipe):
    small = recipe("architecture.vocabulary={size: 260, from: responses}")
    pair = planned_pair(small, planned_shapes(small).draft)
    for engine in LABELS:
        assert next((each.what, each.is_fatal) for each in check(engine, pair)) == ("output head", False)


def test_check_refuses_a_shape_that_an_engine_does_not_serve(recipe, capsys):
    recipe()
    words = ["check", "demo.yaml", ENGINES, "export.tensor_parallel=3", "run_dir=eagle-runs/demo"]
    assert widedraft.main(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("export.engines: vLLM")]
    assert [line.split(": ")[2] for line in lines] == ["tensor parallel", "tensor parallel", "name"]


def test_naming_engines_makes_no_draft_stale(recipe):
    named = recipe(ENGINES, "export.tensor_parallel=2")
    assert draft_inputs(Run.of(named)) == draft_inputs(Run.of(recipe()))
    assert draft_inputs(Run.of(recipe("export.dtype=float32"))) != draft_inputs(Run.of(recipe()))


def test_a_debug_run_is_for_no_engine(recipe):
    named = recipe(ENGINES, "export.tensor_parallel=4")
    target = planned_shapes(named).target
    small = debug_recipe(named, tiny_run(named, target, target))
    assert (small.export.engines, small.export.tensor_parallel) == ([], 1)

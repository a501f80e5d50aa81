"""The shape of a recipe is asked about before it is cut: `widedraft check`, and `widedraft preflight RECIPE`."""

import json
from pathlib import Path

import pytest

import widedraft
from architectures.engines.pair.finding import Severity
from architectures.engines.table import findings
from distill.check import planned_pair, planned_shapes
from distill.debug.recipe import debug_recipe, tiny_run
from distill.recipe.recipe import load_recipe
from distill.run.run import Run
from distill.run.stage_inputs import draft_inputs

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


def test_a_small_head_is_no_reason_to_refuse_a_recipe_that_can_be_converted(recipe):
    small = recipe("architecture.vocabulary={size: 260, from: answers}")
    pair = planned_pair(small, planned_shapes(small).draft)
    for engine in ("vllm", "sglang", "llama.cpp", "transformers", "tensorrt-llm"):
        severities = {each.rule: each.severity for each in findings(engine, pair)}
        assert severities["output head"] is Severity.LOSSY
        assert Severity.REFUSED not in severities.values()


def test_what_is_not_made_yet_is_not_called_fine(recipe):
    plain = recipe()
    found = findings("transformers", planned_pair(plain, planned_shapes(plain).draft))
    unchecked = {each.rule for each in found if each.severity is Severity.NOT_CHECKED}
    assert unchecked == {"token texts", "chat template", "assistant settings", "ensemble"}


def test_preflight_of_a_recipe_is_of_its_shape_target_and_folder(recipe, tiny_target, capsys):
    recipe()
    assert widedraft.main(["preflight", "demo.yaml", "--engines", "vllm"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"vLLM 0.32.0 (run here): run/draft for {tiny_target}\n")
    assert "not checked: token texts" in page
    with pytest.raises(SystemExit) as ended:
        widedraft.main(["preflight", "demo.yaml", "--engines", "vllm", "--tensor-parallel", "8"])
    assert ended.value.code == 1


def test_preflight_of_a_recipe_asks_the_engines_it_names(recipe, tiny_target, capsys):
    recipe()
    Path("named.yaml").write_text(
        Path("demo.yaml").read_text(encoding="utf-8") + "export: {engines: [sglang], tensor_parallel: 2}\n",
        encoding="utf-8",
    )
    assert widedraft.main(["preflight", "named.yaml"]) == 0
    page = capsys.readouterr().out
    assert page.endswith("can be served by: SGLang\n")
    assert "--tp-size 2" in page


def test_preflight_of_a_recipe_takes_values_to_change(recipe, capsys):
    recipe()
    words = ["preflight", "demo.yaml", "export.engines=[llama.cpp]", "architecture.layers=1"]
    assert widedraft.main(words) == 0
    assert capsys.readouterr().out.endswith("can be served by: llama.cpp\n")
    assert widedraft.main([*words, "architecture.layer=2"]) == 2
    assert "architecture.layer is not a key of a recipe" in capsys.readouterr().err


def test_naming_engines_makes_no_draft_stale(recipe):
    named = recipe(ENGINES, "export.tensor_parallel=2")
    assert draft_inputs(Run.of(named)) == draft_inputs(Run.of(recipe()))
    assert draft_inputs(Run.of(recipe("export.dtype=float32"))) != draft_inputs(Run.of(recipe()))


def test_a_debug_run_is_for_no_engine(recipe):
    named = recipe(ENGINES, "export.tensor_parallel=4")
    target = planned_shapes(named).target
    small = debug_recipe(named, tiny_run(named, target, target))
    assert (small.export.engines, small.export.tensor_parallel) == ([], 1)

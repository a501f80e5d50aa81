"""What differs between a finished artifact and the recipe is named: keys with both values, files by their name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from architectures.errors import UserError
from architectures.manifest import inputs_diff
from distill.recipe.recipe import load_recipe
from distill.run import Run
from distill.stage_inputs import (
    cache_inputs,
    draft_inputs,
    eval_inputs,
    generate_inputs,
    mask_inputs,
    prune_inputs,
    scores_inputs,
    training_inputs,
)

RECIPE = """\
run_name: demo
run_dir: run
target: {path: target}
architecture: {layers: 2, method: block_influence}
data: {prompts: [{path: prompts.jsonl}], num_eval_prompts: 2, max_seq_len: 100, max_new_tokens: 40}
distill: {max_duration: 5ba, teacher: {source: cache, contents: top_k}}
eval: {tasks: [{path: tasks.jsonl}]}
"""
MASKS = ["architecture={layers: 2, method: learned_masks}", "text={domains: [{name: a, path: text.txt}]}"]


@pytest.fixture
def run_of(tmp_path, tiny_target, monkeypatch):
    """run_of("key=value", ...) -> a run whose init and draft are the target, and whose responses are recorded."""
    monkeypatch.chdir(tmp_path)
    for name in ("target", "run/init", "run/draft"):
        shutil.copytree(tiny_target, name)
    for name in ("prompts.jsonl", "tasks.jsonl"):
        Path(name).write_text(json.dumps({"prompt": "Count."}), encoding="utf-8")
    Path("text.txt").write_text("Some text.", encoding="utf-8")
    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")

    def make(*words: str) -> Run:
        return Run.of(load_recipe("recipe.yaml", words))

    run = make()
    run.record(run.data, generate_inputs(run))
    return make


def change_prompts(name: str = "prompts.jsonl") -> None:
    Path(name).write_text(json.dumps({"prompt": "Count anew."}), encoding="utf-8")


def change_settings(folder: str) -> None:
    file = Path(folder) / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": [2, 5]}), encoding="utf-8")


def no_change() -> None:
    """Words of the command line alone change."""


CASES = {
    "data": (lambda run: run.data, generate_inputs),
    "init": (lambda run: run.init, prune_inputs),
    "scores": (lambda run: run.scores, lambda run: scores_inputs(run, run.target)),
    "teacher_cache": (lambda run: run.teacher_cache, cache_inputs),
    "masks": (lambda run: run.masks, mask_inputs),
    "checkpoints": (lambda run: run.checkpoints, training_inputs),
    "draft": (lambda run: run.draft, draft_inputs),
    "eval": (lambda run: run.eval, eval_inputs),
}


@pytest.mark.parametrize(
    ("artifact", "before", "after", "change", "key"),
    [
        ("data", [], ["data.temperature=0.5"], no_change, "data.temperature"),
        ("data", [], ["seed=3"], no_change, "seed"),
        ("data", [], [], change_prompts, "prompts[0].sha256"),
        ("data", [], ["data.prompts=[{path: tasks.jsonl}]"], no_change, "prompts[0].path"),
        ("init", [], ["architecture.layers=3"], no_change, "architecture.layers"),
        ("init", [], ["architecture.calibration.tokens=512"], no_change, "architecture.calibration.tokens"),
        ("init", [], [], lambda: change_settings("target"), "target"),
        ("scores", [], [], change_prompts, "calibration.text[0].sha256"),
        ("teacher_cache", [], ["distill.teacher.k=8"], no_change, "distill.teacher.k"),
        ("masks", MASKS, [*MASKS, "architecture.masks.max_duration=9ba"], no_change, "architecture.masks.max_duration"),
        ("masks", MASKS, MASKS, lambda: Path("text.txt").write_text("Other."), "text.domains[0].sha256"),
        ("checkpoints", [], ["distill.optimizer.lr=0.01"], no_change, "distill.optimizer.lr"),
        ("checkpoints", [], [], lambda: Path("run/init/tokenizer.json").unlink(), "init"),
        ("draft", [], ["distill.max_duration=9ba"], no_change, "distill.max_duration"),
        ("draft", [], ["export.dtype=float16"], no_change, "export.dtype"),
        ("eval", [], ["eval.num_prompts=3"], no_change, "eval.num_prompts"),
        ("eval", [], [], lambda: change_prompts("tasks.jsonl"), "prompts[0].sha256"),
    ],
)
def test_each_artifact_names_what_changed(run_of, artifact, before, after, change, key):
    of, inputs_of = CASES[artifact]
    run = run_of(*before)
    run.record(of(run), inputs_of(run))
    change()
    run = run_of(*after)
    with pytest.raises(UserError) as refused:
        of(run).reject_changed(inputs_of(run))
    lines = str(refused.value).splitlines()
    assert any(line.startswith(f"  - {key}: ") for line in lines)
    assert any(line.startswith(f"  + {key}: ") for line in lines)


def test_what_is_made_again_says_why(run_of, capsys):
    run, changed = run_of(), run_of("seed=3", "data.temperature=0.5")
    assert run.data.is_current(generate_inputs(run))
    assert not changed.data.is_current(generate_inputs(changed))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("  - ")] == ["  - data.temperature: 0.0", "  - seed: 17"]


def test_a_value_from_the_environment_is_recorded_by_its_reference(run_of, monkeypatch):
    def inputs(value: str) -> dict[str, Any]:
        monkeypatch.setenv("TOP", value)
        run = run_of("data.temperature=0.5", "data.top_p=${oc.decode:${oc.env:TOP}}")
        return generate_inputs(run)

    assert inputs("0.9")["data"]["top_p"].startswith("${oc.decode:${oc.env:TOP}} (sha256 ")
    assert inputs("0.9") == inputs("0.9")
    assert inputs("0.9") != inputs("0.8")


def test_a_secret_in_a_value_is_masked():
    diff = inputs_diff({"inputs": {"source": "https://me:first@host/x"}}, {"source": "https://me:second@host/x"})
    assert "first" not in diff
    assert "second" not in diff

"""What differs between a finished artifact and the recipe is named: keys with both values, files by their name."""

import json
import shutil
from pathlib import Path

import pytest

from architectures.checkpoints.fingerprint import fingerprint_value
from architectures.checkpoints.fingerprint_parts import MOST_PARTS, differences, flat, parts_of, with_parts
from architectures.checkpoints.manifest import read_manifest
from architectures.errors import UserError
from distill.recipe.recipe import load_recipe
from distill.run.run import Run
from distill.run.stage_inputs import (
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
    """run_of("key=value", ...) -> a run whose init and draft are the target, and whose answers are recorded."""
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
    ("artifact", "before", "after", "change", "told"),
    [
        ("data", [], ["data.temperature=0.5"], no_change, "data.temperature was 0.0, is 0.5"),
        ("data", [], ["seed=3"], no_change, "seed was 17, is 3"),
        ("data", [], [], change_prompts, "prompts: prompts.jsonl has other content"),
        ("data", [], ["data.prompts=[{path: tasks.jsonl}]"], no_change,
         "prompts: prompts.jsonl is gone; prompts: tasks.jsonl is new"),
        ("init", [], ["architecture.layers=3"], no_change, "architecture.layers was 2, is 3"),
        ("init", [], ["architecture.calibration.tokens=512"], no_change,
         "architecture.calibration.tokens was 1024, is 512"),
        ("init", [], [], lambda: change_settings("target"),
         "generation_config.json.eos_token_id was 2, is [2, 5]"),
        ("scores", [], [], change_prompts, "calibration: its text has other content"),
        ("teacher_cache", [], ["distill.teacher.k=8"], no_change, "distill.teacher.k was 64, is 8"),
        ("masks", MASKS, [*MASKS, "architecture.masks.max_duration=9ba"], no_change,
         "architecture.masks.max_duration was 400ba, is 9ba"),
        ("masks", MASKS, MASKS, lambda: Path("text.txt").write_text("Other."), "text: text.txt has other content"),
        ("checkpoints", [], ["distill.optimizer.lr=0.01"], no_change, "distill.optimizer.lr was 0.001, is 0.01"),
        ("checkpoints", [], [], lambda: Path("run/init/tokenizer.json").unlink(), "init: tokenizer.json is gone"),
        ("draft", [], ["distill.max_duration=9ba"], no_change, "distill.max_duration was 5ba, is 9ba"),
        ("draft", [], ["export.dtype=float16"], no_change, "export.dtype was bfloat16, is float16"),
        ("eval", [], ["eval.num_prompts=3"], no_change, "eval.num_prompts was 64, is 3"),
        ("eval", [], [], lambda: change_prompts("tasks.jsonl"), "prompts: tasks.jsonl has other content"),
    ],
)  # fmt: skip
def test_each_artifact_names_what_changed(run_of, artifact, before, after, change, told):
    of, inputs_of = CASES[artifact]
    run = run_of(*before)
    run.record(of(run), inputs_of(run))
    change()
    run = run_of(*after)
    with pytest.raises(UserError) as refused:
        of(run).refuse_changed(inputs_of(run))
    assert f" than the recipe now asks for: {told}. Choose another run_name, or delete" in str(refused.value)


def test_the_command_that_makes_it_anew_is_named(run_of):
    run = run_of()
    run.record(run.init, prune_inputs(run))
    changed = run_of("architecture.layers=3")
    with pytest.raises(UserError, match=r"what was made from it; `widedraft prune RECIPE` makes it anew\.$"):
        changed.init.refuse_changed(prune_inputs(changed))


def test_what_is_made_again_says_why(run_of, capsys):
    run, changed = run_of(), run_of("seed=3", "data.temperature=0.5")
    assert run.data.is_current(generate_inputs(run))
    assert not changed.data.is_current(generate_inputs(changed))
    assert (
        "run/data: changed: data, seed: data.temperature was 0.0, is 0.5; seed was 17, is 3" in capsys.readouterr().out
    )


def test_answers_that_were_made_anew_are_named_by_what_changed_in_them(run_of):
    run = run_of()
    run.record(run.checkpoints, training_inputs(run))
    changed = run_of("data.temperature=0.5")
    change_prompts()
    changed.record(changed.data, generate_inputs(changed))
    with pytest.raises(
        UserError, match="than the recipe now asks for: data: data has other content; data: prompts has"
    ):
        changed.checkpoints.refuse_changed(training_inputs(changed))


def test_a_manifest_of_an_older_version_says_that_its_parts_are_not_known(run_of):
    run = run_of()
    file = run.data.path / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    del manifest["parts"]
    file.write_text(json.dumps(manifest), encoding="utf-8")
    assert run.data.is_current(generate_inputs(run))
    changed = run_of("data.temperature=0.5", "seed=3")
    with pytest.raises(UserError) as refused:
        changed.data.refuse_changed(generate_inputs(changed))
    assert "data (its parts were not recorded by the version that made it); seed was 17, is 3." in str(refused.value)


def test_six_differences_are_told_and_the_rest_counted():
    old, new = ({f"k{number}": number + shift for number in range(9)} for shift in (0, 1))
    inputs = {"data": with_parts(fingerprint_value(new), flat(new, "data"))}
    told = differences(["data"], {"data": fingerprint_value(old)}, inputs, {"data": flat(old, "data")})
    assert told.startswith("data.k0 was 0, is 1; data.k1 was 1, is 2; ")
    assert told.endswith("data.k5 was 5, is 6; and 3 more")


def test_folders_of_thousands_of_files_are_not_listed():
    many = {str(number): "f" * 64 for number in range(MOST_PARTS + 1)}
    assert parts_of({"text": with_parts(fingerprint_value(many), many)}) == {}


def test_what_comes_from_the_environment_is_not_recorded(run_of, monkeypatch):
    monkeypatch.setenv("TOP", "0.9")
    run = run_of("data.temperature=0.5", "data.top_p=${oc.decode:${oc.env:TOP}}")
    run.record(run.data, generate_inputs(run))
    manifest = read_manifest(run.data.path)
    assert manifest is not None
    assert manifest["parts"]["data"]["data.top_p"] == "${oc.decode:${oc.env:TOP}}"


def test_a_secret_in_a_value_is_masked():
    old, new = {"source": "https://me:first@host/x"}, {"source": "https://me:second@host/x"}
    inputs = {"data": with_parts(fingerprint_value(new), flat(new, "data"))}
    told = differences(["data"], {"data": fingerprint_value(old)}, inputs, {"data": flat(old, "data")})
    assert "first" not in told
    assert "second" not in told

"""When work is current, when it is refused, what changed is named, and what is launched; nothing is trained."""

import json
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from architectures.errors import UserError
from architectures.manifest import changed_inputs, inputs_diff, read_manifest, write_manifest
from architectures.requested_shape import ArchitectureConfig
from distill import pipeline, stage_inputs
from distill.pipeline import distill_stage, eval_prompts, export_stage
from distill.recipe.recipe import load_recipe, save_recipe
from distill.recipe.sections import DistillConfig, OptimizerConfig, SchedulerConfig
from distill.run import Run
from distill.stage_inputs import (
    begin_training,
    cache_inputs,
    configured_inputs,
    draft_inputs,
    eval_inputs,
    generate_inputs,
    mask_inputs,
    prune_inputs,
    reject_orphaned_training,
    require_training_inputs,
    scores_inputs,
    sources_as_input,
    training_inputs,
)
from distill.train import train
from eval.responses import read_traces
from eval.tasks import TASKS, PromptSource
from tests.rejections import rejects

CHANGES_WEIGHTS: dict[str, Any] = {
    "freeze_input_embeddings": True,
    "loss": "reverse_kl",
    "temperature": 2.0,
    "global_train_batch_size": 8,
    "precision": "amp_bf16",
    "samples": "student",
    "optimizer": OptimizerConfig(lr=0.5),
    "scheduler": SchedulerConfig(t_warmup="2ba"),
    "gradient_clipping": None,
}
LEAVES_THEM: dict[str, Any] = {
    "max_duration": "9ep",
    "device_train_microbatch_size": 1,
    "device_eval_batch_size": 1,
    "packing": True,
    "eval_interval": "7ba",
    "save_interval": "7ba",
    "save_num_checkpoints_to_keep": 7,
    "parallelism": "fsdp2",
    "shard_degree": 2,
    "activation_checkpointing": True,
    "checkpoints": "sharded",
    "loggers": {},
    "push_to_hub": "org/name",
}


def changed(recipe, key: str, value: Any):
    """The recipe with another value of a dotted key."""
    section, _, name = key.rpartition(".")
    if not section:
        return recipe.model_copy(update={name: value})
    return recipe.model_copy(update={section: getattr(recipe, section).model_copy(update={name: value})})


def test_a_training_continues_under_keys_that_leave_its_weights_alone(make_run):
    recipe = make_run()
    begin_training(Run.of(recipe))
    for key, value in LEAVES_THEM.items():
        assert getattr(recipe.distill, key) != value, key
        require_training_inputs(Run.of(changed(recipe, f"distill.{key}", value)))
    sharded = recipe.distill.teacher.model_copy(update={"parallelism": "fsdp2"})
    require_training_inputs(Run.of(changed(recipe, "distill.teacher", sharded)))


def test_a_training_does_not_continue_under_any_other_key(make_run):
    recipe = make_run()
    begin_training(Run.of(recipe))
    for key, value in CHANGES_WEIGHTS.items():
        with rejects("checkpoints", "distill"):
            require_training_inputs(Run.of(changed(recipe, f"distill.{key}", value)))
    # a cached teacher is asked for its cache first, and text for held-out responses only; unknown_inputs needs
    # a small head (test_small_head_training.py)
    # (of requests: test_a_training_on_requests_does_not_continue_on_others)
    others = {"teacher", "train_on", "unknown_inputs", "online"}
    assert {*CHANGES_WEIGHTS, *LEAVES_THEM, *others} == set(DistillConfig.model_fields)


@pytest.mark.parametrize(
    ("key", "value", "folder"),
    [("architecture", ArchitectureConfig(layers=3, method="first_last"), "init"), ("data.temperature", 0.5, "data")],
)
def test_a_training_does_not_start_from_what_another_recipe_made(make_run, key, value, folder):
    recipe = changed(make_run(), key, value)
    with rejects(folder, key.split(".")[0]):
        require_training_inputs(Run.of(recipe))


def test_responses_of_held_out_prompts_alone_are_not_responses_to_train_on(make_run):
    recipe = changed(make_run(), "distill.train_on", "text")
    with rejects("data", "distill.train_on"):
        require_training_inputs(Run.of(recipe))


def test_a_training_does_not_continue_from_another_init_or_other_responses(make_run, make_checkpoint):
    recipe = make_run()
    begin_training(Run.of(recipe))
    run = Path(recipe.run_dir)
    warmer = changed(recipe, "data.temperature", 0.5)
    write_manifest(run / "data", stage="generate", inputs=generate_inputs(Run.of(warmer)))
    with rejects("checkpoints", "data"):
        require_training_inputs(Run.of(warmer))
    shutil.copyfile(make_checkpoint(seed=9) / "model.safetensors", run / "init" / "model.safetensors")
    with rejects("checkpoints", "data", "init"):
        require_training_inputs(Run.of(warmer))


@pytest.mark.parametrize(
    ("inputs_of", "key", "value", "named"),
    [
        (prune_inputs, "target.dtype", "bfloat16", ["target.dtype"]),
        (prune_inputs, "seed", 5, []),
        (generate_inputs, "target.dtype", "bfloat16", ["target.dtype"]),
        (generate_inputs, "distill.temperature", 2.0, []),
        (eval_inputs, "seed", 5, ["seed"]),
        (eval_inputs, "distill.temperature", 2.0, []),
    ],
)
def test_what_a_changed_key_makes_again(make_run, inputs_of, key, value, named):
    recipe = make_run()
    run = Run.of(recipe)
    shutil.copytree(run.init.path, run.draft.path)
    manifest = {"inputs": inputs_of(run)}
    assert changed_inputs(manifest, inputs_of(Run.of(changed(recipe, key, value)))) == named


def test_responses_of_a_training_on_text_are_others_and_those_of_responses_what_they_were(make_run, tmp_path):
    """Of a training on text held-out prompts alone are answered."""
    (tmp_path / "t.txt").write_text("a b c")
    text = {"domains": [{"name": "d", "path": str(tmp_path / "t.txt")}]}
    on_text = make_run(train_on="text", text=text, max_duration="6ba", eval_interval="3ba")
    on_responses = configured_inputs(make_run("responses"))
    assert {**on_responses, "distill.train_on": "text"} == configured_inputs(on_text)
    assert "distill.train_on" not in on_responses


@pytest.mark.parametrize("keys", [{"name": "rows"}, {"task": "gsm8k", "name": "rows"}])
def test_a_data_set_in_a_folder_is_what_its_files_hold(tmp_path, monkeypatch, keys):
    monkeypatch.chdir(tmp_path)
    assert "sha256" not in sources_as_input([PromptSource(**keys)])[0]  # of the hub, known by its name
    Path("rows").mkdir()
    found = set()
    for text in ('{"question": "a"}', '{"question": "b"}'):
        Path("rows/train.jsonl").write_text(text)
        found.add(sources_as_input([PromptSource(**keys)])[0]["sha256"])
    assert len(found) == 2


def test_a_task_and_its_version_are_part_of_what_something_is_made_from(monkeypatch):
    before = sources_as_input([PromptSource(task="gsm8k")])
    monkeypatch.setattr(stage_inputs, "TASKS", {"gsm8k": replace(TASKS["gsm8k"], version=2)})
    assert sources_as_input([PromptSource(task="gsm8k")]) != before


def test_a_scorecard_is_of_its_draft_its_init_and_its_target(make_run, make_checkpoint):
    recipe = make_run()
    run, other = Path(recipe.run_dir), make_checkpoint(seed=9)
    shutil.copytree(run / "init", run / "draft")
    manifest = {"inputs": eval_inputs(Run.of(recipe))}
    elsewhere = recipe.target.model_copy(update={"path": str(other)})
    assert changed_inputs(manifest, eval_inputs(Run.of(changed(recipe, "target", elsewhere)))) == ["target"]
    shutil.copyfile(other / "model.safetensors", run / "draft" / "model.safetensors")
    assert changed_inputs(manifest, eval_inputs(Run.of(recipe))) == ["draft"]
    shutil.copyfile(other / "model.safetensors", run / "init" / "model.safetensors")
    assert changed_inputs(manifest, eval_inputs(Run.of(recipe))) == ["draft", "undistilled"]


def test_an_init_may_be_replaced_until_something_was_trained_from_it(make_run):
    recipe = make_run()
    reject_orphaned_training(Run.of(recipe))
    begin_training(Run.of(recipe))
    with rejects("checkpoints"):
        reject_orphaned_training(Run.of(recipe))


def test_prompts_to_score_on_are_the_tasks_or_those_held_out(make_run, tmp_path):
    recipe = make_run()
    held_out = [trace.source for trace in read_traces(Path(recipe.run_dir) / "data", "eval")]
    assert [prompt.source for prompt in eval_prompts(Run.of(recipe))] == held_out
    task = tmp_path / "task.jsonl"
    task.write_text(json.dumps({"prompt": "Hello"}) + "\n")
    asked = eval_prompts(Run.of(changed(recipe, "eval.tasks", (PromptSource(path=str(task)),))))
    assert [prompt.source for prompt in asked] == [f"{task}:1"]


@pytest.fixture
def launch(monkeypatch):
    """launch(recipe) -> the commands and environments a distill stage starts; each ends with `launch.code`."""
    started: list[Any] = []

    def start(command, *, env, pass_fds):
        started.append((command, env))
        return nullcontext(SimpleNamespace(wait=lambda: launch.code))

    def launch(recipe):
        path = Path(recipe.run_dir) / "recipe.yaml"
        save_recipe(recipe, path)
        started.clear()
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "subprocess", SimpleNamespace(Popen=start))
            distill_stage(Run.of(recipe, words=(str(path), "seed=17")))
        return started.copy()

    launch.code = 0
    return launch


def test_a_finished_draft_is_trained_again_only_for_other_inputs(make_run, launch):
    recipe = make_run()
    begin_training(Run.of(recipe))
    draft = Path(recipe.run_dir) / "draft"
    draft.mkdir()
    run = Run.of(recipe)
    run.record(run.draft, draft_inputs(run), checkpoint="ep0-ba1-rank0.pt", finished=True)
    assert launch(recipe) == []
    assert len(launch(changed(recipe, "distill.max_duration", "3ep"))) == 1
    assert len(launch(changed(recipe, "export.dtype", "float32"))) == 1


def test_an_exported_draft_is_finished_if_its_training_is(make_run, launch):
    recipe = make_run(max_duration="1ba")
    train(recipe)
    draft = Path(recipe.run_dir) / "draft"
    (draft / "run-Q8_0.gguf").touch()
    for exported, is_kept in ((recipe, True), (changed(recipe, "export.dtype", "float32"), False)):
        export_stage(Run.of(exported))
        assert launch(exported) == []
        assert (draft / "run-Q8_0.gguf").exists() == is_kept
    longer = changed(recipe, "distill.max_duration", "2ba")
    export_stage(Run.of(longer))
    assert (read_manifest(draft) or {})["finished"] is False
    assert len(launch(longer)) == 1


@pytest.mark.parametrize(
    ("num_gpus", "launcher"), [(0, []), (1, []), (2, ["-m", "composer", "-n", "2"]), (8, ["-m", "composer", "-n", "8"])]
)
def test_training_is_launched_once_per_gpu(make_run, launch, monkeypatch, num_gpus, launcher):
    recipe = make_run()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    [(command, environment)] = launch(recipe)
    words = [f"{recipe.run_dir}/recipe.yaml", "seed=17"]
    assert command == [sys.executable, *launcher, "-m", "distill.train", *words]
    assert environment["PYTHONSAFEPATH"] == "1"  # an eval.py in the working folder must not hide ours


def test_a_failed_training_ends_the_command_with_its_exit_code(make_run, launch):
    launch.code = 7
    with pytest.raises(SystemExit) as stopped:
        launch(make_run())
    assert stopped.value.code == 7
    launch.code = 130  # interrupted, without a message of its own
    with pytest.raises(KeyboardInterrupt):
        launch(make_run("interrupted"))


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

"""A changed target makes old work stale wherever it changed; a run of the sampling kind of fingerprint is adopted."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.checkpoints.manifest import KIND_KEYS, changed_inputs, read_manifest, write_manifest
from architectures.checkpoints.older_fingerprint import ADOPTED, sampled_fingerprint
from architectures.errors import UserError
from architectures.files.reading import MIB
from distill.recipe.recipe import Recipe
from distill.recipe.sections.token_selection import TokenSelection
from distill.run import stage_inputs
from distill.run.older_runs import adopt_older_run, checkpoints_of
from distill.run.run import Run
from distill.run.stage_inputs import (
    cache_inputs,
    draft_inputs,
    eval_inputs,
    generate_inputs,
    prune_inputs,
    scores_inputs,
    training_inputs,
)
from distill.run.training import begin_training, require_training_inputs
from distill.stages.running import generate_stage
from distill.teacher_cache.record import JOURNAL_NAME, Journal
from eval.answers.older_answers import adopt_older_answers
from eval.answers.shards import claim_shards, read_claims

UNSAMPLED = 2 * MIB  # of EXTRA: behind the first sample, before the middle one
EXTRA = "extra.safetensors"
SETTINGS = {"seed": 1, "target": "", "tokenizer": "t"}


def test_a_weight_between_the_samples_makes_answers_stale(make_checkpoint, tmp_path, capsys):
    """Layer 1's down_proj times -30 changes every answer; the older kind of fingerprint did not see it."""
    target = make_checkpoint(seed=3, hidden_size=128, intermediate_size=1024, num_hidden_layers=8)
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "Count to {n}."}}\n' for n in range(3)))
    data = {"prompts": [{"path": str(tmp_path / "prompts.jsonl")}], "num_eval_prompts": 1, "max_new_tokens": 2}
    recipe = Recipe.model_validate(
        {
            "run_name": "run",
            "run_dir": str(tmp_path / "run"),
            "target": {"path": str(target), "dtype": "float32"},
            "architecture": {"layers": 2, "method": "first_last"},
            "data": data,
        }
    )
    generate_stage(Run.of(recipe))
    before, weights = sampled_fingerprint(target), load_file(target / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"] *= -30
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    assert sampled_fingerprint(target) == before
    with pytest.raises(UserError, match="answers were made with other settings: target was"):
        generate_stage(Run.of(recipe))
    assert "data: changed: target" in capsys.readouterr().out


@pytest.fixture
def target(tmp_path, tiny_target):
    """A target that may be changed where the older kind of fingerprint did not look."""
    folder = tmp_path / "target"
    shutil.copytree(tiny_target, folder)
    (folder / EXTRA).write_bytes(bytes(8 * MIB))
    return folder


def change(target):
    with (target / EXTRA).open("r+b") as file:
        file.seek(UNSAMPLED)
        file.write(b"\x01")


@pytest.fixture
def older_run(make_run, target, monkeypatch):
    """A run as an earlier widedraft left it: every stage finished, its fingerprints of the older kind."""
    recipe = make_run(teacher={"source": "cache"}).model_copy(deep=True)
    recipe = recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": str(target)})})
    run = Path(recipe.run_dir)
    with monkeypatch.context() as patch:
        patch.setattr(stage_inputs, "fingerprint_checkpoint", sampled_fingerprint)
        write_manifest(run / "init", stage="prune", inputs=prune_inputs(Run.of(recipe)))
        write_manifest(run / "data", stage="generate", inputs=generate_inputs(Run.of(recipe)))
        write_manifest(run / "scores", stage="scores", inputs=scores_inputs(Run.of(recipe), target))
        write_manifest(run / "teacher_cache", stage="cache", inputs=cache_inputs(Run.of(recipe)))
        begin_training(Run.of(recipe))
        shutil.copytree(run / "init", run / "draft")
        (run / "draft" / "config.json").write_text((run / "draft" / "config.json").read_text() + " ")  # another model
        training = draft_inputs(Run.of(recipe))
        write_manifest(run / "draft", stage="export", inputs=training, finished=True)
        write_manifest(run / "eval", stage="eval", inputs=eval_inputs(Run.of(recipe)))
    for folder in stages_of(recipe):
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in manifest.items() if key not in KIND_KEYS}))
    return recipe


def stages_of(recipe):
    return [path.parent for path in Path(recipe.run_dir).glob("*/manifest.json")]


def inputs_of(recipe, target):
    """What each stage is compared with today."""
    training = training_inputs(Run.of(recipe))
    return {
        "init": prune_inputs(Run.of(recipe)),
        "data": generate_inputs(Run.of(recipe)),
        "scores": scores_inputs(Run.of(recipe), target),
        "teacher_cache": cache_inputs(Run.of(recipe)),
        "checkpoints": training,
        "draft": draft_inputs(Run.of(recipe)),
        "eval": eval_inputs(Run.of(recipe)),
    }


def changed_stages(recipe, target):
    wanted = inputs_of(recipe, target)
    assert {folder.name for folder in stages_of(recipe)} == set(wanted)
    found = {name: read_manifest(Path(recipe.run_dir) / name) or {} for name in wanted}
    changes = {name: changed_inputs(found[name], wanted[name]) for name in wanted}
    return {name: change for name, change in changes.items() if change}


def test_every_stage_that_is_equal_is_adopted_and_says_so_once(older_run, target, capsys):
    assert set(changed_stages(older_run, target)) == {folder.name for folder in stages_of(older_run)}
    require_training_inputs(Run.of(older_run))
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == sorted(f"   {folder}: {ADOPTED}" for folder in stages_of(older_run))
    require_training_inputs(Run.of(older_run))
    assert capsys.readouterr().out == ""
    assert changed_stages(older_run, target) == {}


def test_what_was_adopted_is_stale_at_the_next_byte(older_run, target):
    adopt_older_run(Run.of(older_run))
    change(target)
    adopt_older_run(Run.of(older_run))
    stale = ["data", "eval", "init", "scores", "teacher_cache"]
    assert changed_stages(older_run, target) == {name: ["target"] for name in stale}
    with pytest.raises(UserError, match="init was made from another target than"):
        require_training_inputs(Run.of(older_run))


def test_what_is_not_equal_by_the_older_kind_counts_as_changed(older_run, target, capsys):
    (target / "config.json").write_text((target / "config.json").read_text() + " ")
    with pytest.raises(UserError, match="init was made from another target than"):
        require_training_inputs(Run.of(older_run))
    said = capsys.readouterr().out  # init and draft themselves did not change
    assert [name for name in ("checkpoints", "draft", "eval", "data", "init:") if name in said] == [
        "checkpoints",
        "draft",
        "eval",
    ]


def test_every_checkpoint_that_a_stage_may_name_is_asked_for(make_run, tiny_target, tiny_draft):
    recipe = make_run()
    run, selection = Path(recipe.run_dir), TokenSelection(reference=str(tiny_draft))
    (run / "draft").mkdir()
    (run / "stage-3" / "draft").mkdir(parents=True)
    distill = recipe.distill.model_copy(update={"token_selection": selection})
    named = [tiny_target, run / "init", run / "draft", tiny_draft]
    for keys, also in (({"source": str(tiny_draft)}, tiny_draft), ({"stages": (3, 2)}, run / "stage-3" / "draft")):
        architecture = recipe.architecture.model_copy(update=keys)
        found = checkpoints_of(Run.of(recipe.model_copy(update={"architecture": architecture, "distill": distill})))
        assert sorted(found) == sorted([*named, also])


def test_a_run_of_today_is_adopted_by_nothing(make_run, tiny_target, monkeypatch):
    recipe = make_run()
    monkeypatch.setattr("distill.run.older_runs.today_by_older", None)  # nobody may ask
    adopt_older_run(Run.of(recipe))


def test_records_of_a_scorecard_name_models_as_those_of_today_do(older_run, target):
    folder, older = Path(older_run.run_dir) / "eval", sampled_fingerprint(target)
    records = {"scorecard.json": older, "T0/settings.json": older, "rounds.jsonl": older, "scorecard.md": older[:12]}
    for name, text in records.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f'"{text}"')
    adopt_older_run(Run.of(older_run))
    today = fingerprint_checkpoint(target)
    found = [(folder / name).read_text() for name in records]
    assert found == [f'"{today}"'] * 3 + [f'"{today[:12]}"']


def test_a_capture_that_was_interrupted_continues(older_run, target, capsys):
    cache = Path(older_run.run_dir) / "teacher_cache"
    manifest = read_manifest(cache) or {}
    (cache / "manifest.json").unlink()
    journal = Journal(cache, manifest["inputs"])
    journal.begin({})
    lines = journal.path.read_text().splitlines()
    head = {key: value for key, value in json.loads(lines[0]).items() if key not in KIND_KEYS}
    (cache / JOURNAL_NAME).write_text(json.dumps(head) + '\n{"name": "a", "num_bytes": 1, "sha256": "b"}\n{"na')
    adopt_older_run(Run.of(older_run))
    assert f"   {cache}: {ADOPTED}\n" in capsys.readouterr().out
    assert set(Journal(cache, cache_inputs(Run.of(older_run))).files) == {"a"}
    change(target)
    with pytest.raises(UserError, match="was begun from another target than"):
        Journal(cache, cache_inputs(Run.of(older_run)))


def test_answers_that_were_interrupted_continue(tmp_path, target, capsys):
    today = {**SETTINGS, "target": fingerprint_checkpoint(target)}
    claim_shards(tmp_path / "out", "train", {**SETTINGS, "target": sampled_fingerprint(target)}, num_shards=1)
    for _ in range(2):
        adopt_older_answers(tmp_path / "out", target)
        claim_shards(tmp_path / "out", "train", today, num_shards=1)
    assert capsys.readouterr().out == f"   {tmp_path / 'out'}: {ADOPTED}\n"
    change(target)
    adopt_older_answers(tmp_path / "out", target)
    assert read_claims(tmp_path / "out")["train"]["settings"] == today


def test_answers_are_not_adopted_later_than_their_run(older_run, target):
    """A finished run's claims are not asked for: left as they are, they would vouch for a target changed since."""
    data = Path(older_run.run_dir) / "data"
    claim_shards(data, "more", {**SETTINGS, "target": sampled_fingerprint(target)}, num_shards=1)
    adopt_older_run(Run.of(older_run))
    assert read_claims(data)["more"]["settings"]["target"] == fingerprint_checkpoint(target)


def test_masks_keep_their_fingerprint_when_they_are_adopted(make_run, target, monkeypatch):
    masks = Path(make_run().run_dir) / "masks"
    monkeypatch.setattr(stage_inputs, "mask_inputs", lambda run: {"target": fingerprint_checkpoint(run.target)})
    recipe = make_run(name="other")
    at_target = recipe.target.model_copy(update={"path": str(target)})
    recipe = recipe.model_copy(update={"run_dir": str(masks.parent), "target": at_target})
    manifest = {"stage": "masks", "inputs": {"target": sampled_fingerprint(target)}}
    masks.mkdir()
    (masks / "manifest.json").write_text(json.dumps(manifest))
    adopt_older_run(Run.of(recipe))
    assert (read_manifest(masks) or {})["adopted"] == {"target": fingerprint_checkpoint(target)}
    assert stage_inputs.masks_as_input(Run.of(recipe))["masks"] == stage_inputs.fingerprint_value(manifest)

"""A draft cut out of another model than its target: it has what is the target's, and its source a pinned revision."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

import distill.pipeline
import eval.scorecard
from architectures.hub import read_config
from architectures.manifest import fingerprint_checkpoint, read_manifest, write_manifest
from architectures.shapes import Shape
from architectures.target_files import SETTINGS_NAME, read_generation_settings
from distill.check import planned_shapes
from distill.pipeline import eval_stage, export_stage, prune_stage
from distill.recipe.recipe import Recipe, save_recipe
from distill.run import Run, earlier_stages
from distill.stage_inputs import eval_inputs, generate_inputs, prune_inputs
from distill.train import main, train
from eval.responses import Trace, claim_shards, write_shard
from tests.distill.after_training import metrics
from tests.distill.conftest import DISTILL
from tests.distill.recipe_files import tiny_recipe
from tests.rejections import holds, rejects

OF_TARGET = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", SETTINGS_NAME)
VOCAB, SMALLER = 272, 264
SETTINGS = {"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": 0, "temperature": 0.6, "do_sample": True}


@pytest.fixture
def target(make_checkpoint) -> Path:
    """A target with end tokens and a padded vocabulary of its own."""
    folder = make_checkpoint(seed=1, vocab_size=VOCAB, eos_token_id=[2, 7])
    (folder / SETTINGS_NAME).write_text(json.dumps(SETTINGS))
    return folder


@pytest.fixture
def source(make_checkpoint) -> Path:
    """A smaller model with the target's vocabulary, and words, end tokens and padding of its own."""
    folder = make_checkpoint(seed=2, num_hidden_layers=3, vocab_size=SMALLER)
    (folder / "chat_template.jinja").write_text("SOURCE {{ messages }}")
    return folder


@pytest.fixture
def make_recipe(tmp_path, target, source):
    def make(**architecture) -> Recipe:
        wanted = {"layers": 2, "method": "first_last", "source": str(source), **architecture}
        settings = {**DISTILL, "max_duration": "2ba", "scheduler": {"t_warmup": "0ba"}, "eval_interval": "1dur"}
        data = {"self_written_prompts": 1, "max_seq_len": 30, "max_new_tokens": 25}
        return tiny_recipe(tmp_path / "run", target, wanted, data, distill=settings)

    return make


def write_responses(recipe: Recipe, *last_ids: int, name: str = "train") -> None:
    """One response for each id, which ends it; the first is on the first line."""
    folder = Path(recipe.run_dir) / "data"
    (path,) = claim_shards(folder, name, {}, num_shards=1)
    traces = [Trace(i, f"t:{i}", (), (1, 70, 80), (90, last), "", "stop") for i, last in enumerate(last_ids)]
    write_shard(path, [asdict(trace) for trace in traces])
    write_manifest(folder, stage="generate", inputs=generate_inputs(Run.of(recipe)))


def require_dressed(draft: Path, target: Path) -> None:
    for name in OF_TARGET:
        assert (draft / name).read_bytes() == (target / name).read_bytes(), name
    config = read_config(draft)
    assert (config["eos_token_id"], config["vocab_size"]) == ([2, 7], VOCAB)
    assert AutoModelForCausalLM.from_pretrained(draft).generation_config.eos_token_id == [2, 7]


def test_it_trains_on_ids_that_its_source_has_no_rows_for_and_is_exported_with_all_that_is_the_targets(
    make_recipe, target, source
):
    recipe = make_recipe()
    run = Path(recipe.run_dir)
    prune_stage(Run.of(recipe))
    require_dressed(run / "init", target)
    manifest = read_manifest(run / "init")
    assert manifest is not None
    assert manifest["source"] == {"path": str(source), "revision": "main"}
    assert planned_shapes(recipe).draft == Shape.from_config(read_config(run / "init"))

    write_responses(recipe, *range(SMALLER, VOCAB))
    write_responses(recipe, 265, 271, name="eval")
    train(recipe)
    log = metrics(recipe)
    assert 0 < log[1]["loss/train/total"] < log[0]["loss/train/total"]
    require_dressed(run / "draft", target)

    shutil.copyfile(source / "chat_template.jinja", run / "init" / "chat_template.jinja")  # as an earlier version left
    export_stage(Run.of(recipe))
    require_dressed(run / "draft", target)


@pytest.mark.parametrize(
    ("vocab_size", "last_ids", "line", "unknown", "reader"),
    [
        (260, (90, 262), 2, 262, "init"),
        (264, (90, 100, 272), 3, 272, "init"),
        (280, (272,), 1, 272, "target"),
    ],
    ids=["beyond the draft", "beyond both", "beyond the target"],
)
@pytest.mark.parametrize("name", ["train", "eval"])
def test_an_id_without_a_row_ends_with_one_message_before_training(
    make_recipe, make_checkpoint, target, capsys, name, vocab_size, last_ids, line, unknown, reader
):
    recipe = make_recipe()
    run = Path(recipe.run_dir)
    shutil.copytree(make_checkpoint(seed=2, num_hidden_layers=2, vocab_size=vocab_size), run / "init")
    write_manifest(run / "init", stage="prune", inputs=prune_inputs(Run.of(recipe)))
    for split in ("train", "eval"):
        write_responses(recipe, *(last_ids if split == name else (90,)), name=split)
    save_recipe(recipe, run / "recipe.yaml")

    assert main([str(run / "recipe.yaml")]) == 2
    model, size = (run / "init", vocab_size) if reader == "init" else (target, VOCAB)
    said = capsys.readouterr().err
    assert f"{run / 'data' / f'{name}-00000.jsonl'}:{line}: token id {unknown} " in said
    assert holds(said, f"vocab_size {size}")
    assert str(model) in said
    assert not (run / "checkpoints").exists()


def test_a_source_with_another_tokenizer_is_refused(make_recipe, source):
    file = source / "tokenizer.json"
    file.write_text(file.read_text().replace('"<|im_start|>"', '"<|im_begin|>"'))
    with rejects("'<|im_start|>'", 259, 260, "architecture.source"):
        prune_stage(Run.of(make_recipe()))


def test_padding_that_the_target_does_not_have_is_cut(make_recipe, make_checkpoint, target):
    recipe = make_recipe(source=str(make_checkpoint(seed=2, num_hidden_layers=3, vocab_size=300)))
    prune_stage(Run.of(recipe))
    require_dressed(Path(recipe.run_dir) / "init", target)


@pytest.fixture
def hub(monkeypatch, source) -> list[tuple[str, str]]:
    """The hub holds the source at every revision; what is asked of it."""
    asked = []

    def fetch(repo_id: str, revision: str, files: list[str]) -> Path:
        asked.append((repo_id, revision))
        return source

    monkeypatch.setattr("architectures.hub.fetch", fetch)
    return asked


def test_a_source_on_the_hub_is_taken_at_its_revision_everywhere(make_recipe, target, hub):
    recipe = make_recipe(source="owner/small@v2")
    planned_shapes(recipe)
    prune_stage(Run.of(recipe))
    assert set(hub) == {("owner/small", "v2")}
    manifest = read_manifest(Path(recipe.run_dir) / "init")
    assert manifest is not None
    assert manifest["source"] == {"path": "owner/small", "revision": "v2"}


def test_a_revision_is_of_the_recipes_own_source_and_not_of_the_stage_before(make_recipe, hub):
    recipe = make_recipe(source="owner/small@v2", layers=None, stages=[3, 2, 1])
    stages = [stage.recipe.architecture for stage in earlier_stages(Run.of(recipe))]
    assert [stage.source_at for stage in stages] == [
        ("owner/small", "v2"),
        (str(Path(recipe.run_dir) / "stage-3" / "draft"), "main"),
    ]


def test_the_scored_lookahead_is_written_into_the_draft_and_makes_nothing_stale(
    make_recipe, target, monkeypatch, capsys
):
    recipe = make_recipe()
    run = Path(recipe.run_dir)
    prune_stage(Run.of(recipe))
    shutil.copytree(run / "init", run / "draft")
    write_responses(recipe, 90, name="eval")
    calls = []

    def score(target: Path, drafts: Any, prompts: Any, config: Any, out: Path, **_: Any) -> None:
        calls.append(out)

    monkeypatch.setattr(eval.scorecard, "score_drafts", score)
    card = SimpleNamespace(main_forecast=SimpleNamespace(best_k=3))
    monkeypatch.setattr(distill.pipeline, "read_scorecard", lambda _: card)
    before = eval_inputs(Run.of(recipe)), fingerprint_checkpoint(run / "draft")
    eval_stage(Run.of(recipe))

    assert "num_assistant_tokens 3" in capsys.readouterr().out
    wanted = SETTINGS | {
        "num_assistant_tokens": 3,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    assert read_generation_settings(run / "draft") == wanted
    assert (eval_inputs(Run.of(recipe)), fingerprint_checkpoint(run / "draft")) == before
    assert (run / "init" / SETTINGS_NAME).read_bytes() == (target / SETTINGS_NAME).read_bytes()

    shutil.copyfile(target / SETTINGS_NAME, run / "draft" / SETTINGS_NAME)  # as another export of the same draft does
    eval_stage(Run.of(recipe))
    assert len(calls) == 1
    assert read_generation_settings(run / "draft") == wanted

"""A draft trained at size tiny, and what a training run is planned from."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from architectures.checkpoints.manifest import read_manifest
from benchmarks.gpu import trained_draft
from benchmarks.gpu.stage import Setting, SkippedError
from benchmarks.gpu.trained_draft import (
    QUICKSTART,
    TRAINING,
    TimedBatches,
    affordable,
    batches_within,
    recipe_of,
    steps_of,
    within,
)
from distill.recipe.recipe import load_recipe
from eval.answers.traces import read_traces

pytestmark = pytest.mark.usefixtures("trainings_begin_at_once")
PROMPTS = Path(__file__).parents[3] / "recipes" / "prompts" / "quickstart.jsonl"
MANY = {"prompts": 10, "answers": 10, "answer_tokens": 100}
FULL, TINY = TRAINING["full"], TRAINING["tiny"]


@pytest.fixture(scope="module")
def setting(tiny_target, tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    return Setting(torch.device("cpu"), "tiny", tiny_target, PROMPTS, work, work, time.monotonic() + 300)


@pytest.fixture(scope="module")
def found(setting):
    return trained_draft.trained_draft(setting, TINY)


def test_a_draft_is_trained(setting, found):
    assert (found.row["what"], found.row["layers"]) == ("trained", TINY.layers)
    assert found.row["epochs"] == found.row["batches"] * TINY.trained_together / found.row["prompts"]
    assert (read_manifest(found.draft) or {})["finished"] is True


def test_prompts_measured_on_were_not_trained_on(setting, found):
    held_out = found.held_out()
    learned = {trace.prompt_ids for trace in read_traces(setting.work / "draft" / "data", "train")}
    assert len(held_out) == TINY.num_eval_prompts
    assert not {tuple(ids) for ids in held_out} & learned


def test_what_the_target_wrote_itself_is_not_measured_on(setting, found, monkeypatch):
    traces = read_traces(setting.work / "draft" / "data", "eval")
    its_own = [replace(traces[0], source="self-written:1"), *traces[1:]]
    monkeypatch.setattr(trained_draft, "read_traces", lambda *_: its_own)
    held_out = found.held_out()
    assert held_out == [list(trace.prompt_ids) for trace in traces[1:]]


def test_a_later_call_takes_the_draft_that_is_there(setting, found, monkeypatch):
    monkeypatch.setattr(trained_draft, "train_now", lambda *_: pytest.fail("trained again"))
    less_time = replace(setting, deadline_s=time.monotonic() + 5)
    assert trained_draft.trained_draft(less_time, TINY).row == found.row | {"kept": True}


def test_other_sizes_are_trained_anew(setting, found, monkeypatch):
    monkeypatch.setattr(trained_draft, "train_now", lambda *_: {"what": "anew"})
    monkeypatch.setattr(trained_draft.shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(trained_draft, "write_json", lambda *_: None)
    assert trained_draft.trained_draft(setting, replace(TINY, layers=1)).row == {"what": "anew"}


def test_a_broken_target_skips_the_item(setting, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text('{"vocab_size": 264}')
    with pytest.raises(SkippedError, match=str(target)):
        trained_draft.trained_draft(replace(setting, target=target, work=tmp_path / "work"), TINY)


def test_training_takes_at_most_two_thirds_of_the_time_that_is_left(setting):
    plenty, some = (replace(setting, deadline_s=time.monotonic() + seconds) for seconds in (1000, 90))
    assert within(FULL, plenty) == FULL
    short = within(FULL, some)
    assert short.generate_s + short.train_s == pytest.approx(60, abs=0.5)
    with pytest.raises(SkippedError, match="training takes 120 s"):
        within(FULL, replace(setting, deadline_s=time.monotonic() + 10))


def test_what_answers_took_too_long_is_taken_off_training(setting, tmp_path, monkeypatch):
    """Seconds of a clock that only the stages move: 120 in all, 70 of them gone when the batches are planned."""
    clock, planned = iter([0.0, 50.0, 60.0, 70.0, 130.0]), []
    monkeypatch.setattr(trained_draft.time, "monotonic", lambda: next(clock))
    for name in ("prune_stage", "generate_stage", "cache_if_asked", "train", "free_memory"):
        monkeypatch.setattr(trained_draft, name, lambda *_: None)
    monkeypatch.setattr(trained_draft, "time_batches", lambda *_: TimedBatches(0.5, 5))
    monkeypatch.setattr(trained_draft, "read_manifest", lambda _: {"counts": {"train": MANY}})
    monkeypatch.setattr(trained_draft, "batches_within", lambda seconds, _: planned.append(seconds) or 1)
    row = trained_draft.train_now(replace(setting, work=tmp_path), replace(FULL, self_written=()))
    assert planned == [50.0]
    assert (row["prune_s"], row["generate_s"], row["train_s"], row["seconds"]) == (10, 50, 70, 130)


def test_batches_fill_the_time_and_are_never_none():
    assert batches_within(80, TimedBatches(batch_s=0.05, around_s=10)) == 1400
    assert batches_within(5, TimedBatches(batch_s=0.05, around_s=10)) == trained_draft.LEAST_BATCHES


def test_the_target_writes_as_many_prompts_as_the_time_for_answers_holds(setting, monkeypatch):
    sizes = replace(FULL, answered_together=512, self_written=(1536, 512, 256, 0))
    fits_s = FULL.generate_s / trained_draft.MARGIN / steps_of(sizes, 570, 512)
    for step_s, count in ((0.0, 1536), (0.99 * fits_s, 512), (1.01 * fits_s, 256), (1, 0)):
        monkeypatch.setattr(trained_draft, "seconds_a_step", lambda *_, step_s=step_s: step_s)
        assert affordable(setting, sizes) == count


def test_steps_are_of_writing_answering_and_held_out_answers():
    sizes = replace(FULL, answered_together=100, num_eval_prompts=50, max_new_tokens=10)
    assert steps_of(sizes, 150, 0) == (1 + 1) * 10
    assert steps_of(sizes, 150, 100) == 2 * 256 + (1 + 2) * 10


def test_the_rate_of_the_target_is_a_time(setting):
    assert 0 < trained_draft.seconds_a_step(setting, 4) < 1


def test_the_recipe_is_the_quickstarts(setting):
    recipe = recipe_of(setting, FULL, self_written=512)
    assert recipe.architecture.method == "block_influence"
    assert recipe.architecture.calibration.tokens == 1024
    assert recipe.data.self_written_prompts == 512
    assert Path(recipe.run_dir) == setting.work / "draft"
    assert recipe.distill.device_train_microbatch_size == recipe.distill.global_train_batch_size == 4
    quickstart = load_recipe(trained_draft.ROOT / QUICKSTART)
    smaller = {"size": 259}  # of the random target's 264 ids
    assert recipe.architecture.vocabulary == quickstart.architecture.vocabulary.model_copy(update=smaller)
    assert recipe.distill.teacher == quickstart.distill.teacher
    assert recipe.distill.optimizer == quickstart.distill.optimizer


def test_the_quickstarts_draft_is_trained_from_its_cache(setting, tmp_path):
    """At sizes of a test: one layer, some ids, hidden states kept while answering."""
    recipe = tmp_path / "small.yaml"
    text = (trained_draft.ROOT / QUICKSTART).read_text(encoding="utf-8")
    recipe.write_text(text.replace("size: 4096", "size: 259"), encoding="utf-8")
    trained = trained_draft.trained_draft(replace(setting, work=tmp_path), replace(TINY, layers=1, recipe=str(recipe)))
    assert trained.row["layers"] == 1
    assert trained.row["batches"] >= trained_draft.LEAST_BATCHES
    assert read_manifest(trained.run / "teacher_cache") is not None
    assert (read_manifest(trained.draft) or {})["finished"] is True

"""Trainings that are timed: laws of the rows at size tiny, on a processor."""

import time
from dataclasses import replace

import pytest
import torch

from architectures.shapes.shape import NAMED_SHAPES
from benchmarks.gpu import distillation, training
from benchmarks.gpu.distillation import cells, mfu_at_batch, pair_of, rows
from benchmarks.gpu.stage import Setting, SkippedError
from benchmarks.gpu.training import answers_of, flops_per_step, measure_training, recipe_of
from distill.monitoring.step_times import PHASES

pytestmark = pytest.mark.usefixtures("trainings_begin_at_once")
SIZES = ("full", "laptop", "tiny")


@pytest.fixture
def setting(tmp_path, tiny_target):
    return Setting(
        device=torch.device("cpu"),
        size="tiny",
        target=tiny_target,
        prompts=tmp_path / "none.jsonl",
        work=tmp_path,
        out=tmp_path,
        deadline_s=time.monotonic() + 600,
    )


def measured(found):
    return [row for row in found if "aim" not in row]


@pytest.mark.usefixtures("_empty_heap")
def test_every_cell_gives_a_row_that_agrees_with_itself(setting):
    found = list(rows(setting))
    trained = measured(found)
    assert [(row["source"], row["optimizer"], row["packing"]) for row in trained] == [
        ("live", "adamw", False),
        ("cached", "adamw", False),
        ("none", "adamw", False),
        ("none", "decoupled_adamw", False),
        ("live", "adamw", False),
        ("live", "adamw", True),
    ]
    for row in trained:
        assert not {"failed", "skipped"} & row.keys(), row
        assert sum(row[f"{phase}_s"] for phase in PHASES) == pytest.approx(row["step_s"], rel=0.5)  # medians of each
        assert row["flops_per_s"] == pytest.approx(row["flops_per_step"] / row["step_s"], rel=0.01)
        assert row["mfu"] == pytest.approx(row["flops_per_s"] / row["peak_flops"], abs=1e-4)
        assert row["peak_gib"] > 0
        assert row["estimated_gib"] > 0
        assert (row["teacher_s"] > 0) == (row["source"] != "none")
    tokens = trained[0]["batch"] * trained[0]["seq_len"]
    assert trained[0]["tokens_per_s"] * trained[0]["step_s"] == pytest.approx(tokens, rel=0.01)
    assert trained[0]["answer_tokens_per_s"] * trained[0]["step_s"] == pytest.approx(tokens / 4, rel=0.01)
    assert not list(setting.work.iterdir())  # the caches of a GPU's cells are half a gigabyte each


def test_aims_follow_the_cells_they_are_about(setting):
    found = list(rows(setting))
    places = [place for place, row in enumerate(found) if "aim" in row]
    assert places == [1, 4]
    live, _, cached, alone = found[:4]
    assert found[1]["reached"] == live["mfu"]
    assert found[1]["reached_at_recipe_batch"] == pytest.approx(live["mfu"], abs=1e-3)  # that batch is the cell's
    assert found[4]["reached"] == pytest.approx(alone["step_s"] / cached["step_s"], abs=1e-3)


def test_a_larger_batch_takes_the_optimisers_step_once():
    row = {"batch": 8, "step_s": 3.0, "optimiser_s": 1.0, "flops_per_step": 30, "peak_flops": 20.0}
    assert mfu_at_batch(row, 8) == pytest.approx(30 / 3 / 20)
    assert mfu_at_batch(row, 32) == pytest.approx(120 / 9 / 20)


def test_counted_flops_are_those_the_training_logs(monkeypatch, setting):
    """What is counted from lengths alone is what DistillModel counts in its batches."""
    counted = []
    count = training.DistillModel.flops_per_batch
    monkeypatch.setattr(
        training.DistillModel, "flops_per_batch", lambda self, batch: counted.append(count(self, batch)) or counted[-1]
    )
    pair = pair_of(setting)
    for cell in cells("tiny"):
        counted.clear()
        measure_training(pair, cell, recipe_of(pair, cell, setting.work / "run", "fp32"), setting.device, idle_bytes=0)
        assert sum(counted) // len(counted) == flops_per_step(pair, cell)


def test_the_first_steps_are_left_out(monkeypatch, setting):
    pair, cell = pair_of(setting), cells("tiny")[0]
    seconds = [*[9.0] * cell.warmup, *[0.5] * cell.steps]
    phases = [dict.fromkeys(PHASES, 0.0) | {"student": each} for each in seconds]
    monkeypatch.setattr(training, "step_seconds", lambda _: phases)
    recipe = recipe_of(pair, cell, setting.work / "run", "fp32")
    row = measure_training(pair, cell, recipe, setting.device, idle_bytes=0)
    assert (row["step_s"], row["student_s"]) == (0.5, 0.5)


def test_nothing_is_held_after_a_training_and_nothing_was_saved_or_evaluated(monkeypatch, setting):
    models, trainers = [], []
    build, trainer = training.distill_model, training.build_trainer
    monkeypatch.setattr(training, "distill_model", lambda *args: models.append(build(*args)) or models[-1])
    monkeypatch.setattr(
        training, "build_trainer", lambda *args, **more: trainers.append(trainer(*args, **more)) or trainers[-1]
    )
    monkeypatch.setattr("distill.monitoring.callbacks.write_checkpoint", lambda *_: pytest.fail("a checkpoint"))
    monkeypatch.setattr("distill.training.model.DistillModel.eval_forward", lambda *_: pytest.fail("an evaluation"))
    pair, cell = pair_of(setting), cells("tiny")[0]
    measure_training(pair, cell, recipe_of(pair, cell, setting.work / "run", "fp32"), setting.device, idle_bytes=0)
    [model], [one] = models, trainers
    for parameter in (*model.parameters(), *model.teacher.model.parameters()):
        assert parameter.numel() == 0
        assert parameter.grad is None
    assert not any(optimizer.state for optimizer in one.state.optimizers)


def test_a_cell_that_fails_leaves_the_others(monkeypatch, setting):
    cache = training.write_cache

    def full_disk(*args, **more):
        raise OSError("no room\nleft")

    def too_small(*args, **more):
        raise torch.cuda.OutOfMemoryError("tried to allocate 9 GiB")

    monkeypatch.setattr(training, "write_cache", full_disk)
    found = measured(rows(setting))
    assert [row["source"] for row in found if "failed" in row] == ["cached"]
    assert found[1]["failed"] == "OSError: no room left"
    assert sum("step_s" in row for row in found) == len(found) - 1
    monkeypatch.setattr(training, "write_cache", cache)
    monkeypatch.setattr(training, "random_model", too_small)
    assert {row["skipped"] for row in rows(setting)} == {"OutOfMemoryError: tried to allocate 9 GiB"}


def test_what_does_not_fit_time_or_memory_is_left_out_with_its_reason(monkeypatch, setting):
    late = replace(setting, deadline_s=time.monotonic())
    assert all("0 s are left" in row["skipped"] for row in rows(late))
    monkeypatch.setattr("benchmarks.gpu.stage.free_bytes", lambda _: 1000)
    assert all("GiB free" in row["skipped"] for row in rows(setting))


def test_another_device_than_trainings_is_refused(setting):
    with pytest.raises(SkippedError, match="training takes cpu on this machine, not cuda:0"):
        next(rows(replace(setting, device=torch.device("cuda:0"))))


def test_full_cells_are_a_7b_teacher_and_its_recipe(setting):
    """What is asked of a GPU of 80 GB: shapes, the recipe's micro-batch first, estimates below its memory."""
    pair = pair_of(replace(setting, size="full"))
    assert (pair.teacher, pair.student) == (NAMED_SHAPES["llama-7b"].shape, NAMED_SHAPES["wide-796m"].shape)
    found = cells("full")
    assert [cell.source for cell in found[:3]] == ["live", "cached", "none"]
    recipe = distillation.recipe_of(pair, found[0], setting.work, "amp_bf16")
    assert recipe.distill.optimizer.lr == 3e-4  # of the recipe of that shape
    assert recipe.distill.loss == "negative_log_acceptance"
    for cell in found:
        recipe = distillation.recipe_of(pair, cell, setting.work, "amp_bf16")
        assert training.estimated_bytes(pair, recipe) < 70 * 2**30
        assert cell.batch % cell.microbatch == 0
    assert {(cell.seq_len, cell.microbatch) for cell in found} == {(2048, 4), (2048, 8)}


@pytest.mark.parametrize("size", SIZES)
def test_cells_differ_and_packing_stands_beside_the_same_without(size):
    found = cells(size)
    assert len(set(found)) == len(found)
    for cell in found:
        assert not cell.packing or replace(cell, packing=False) in found
        assert cell.source != "cached" or not cell.mixed_lengths  # random caches hold answers of one length


def test_sequences_are_of_the_lengths_asked_for(setting):
    pair, live, mixed = pair_of(setting), cells("tiny")[0], cells("tiny")[-1]
    lengths = {len(each.input_ids) for each in answers_of(pair, live).examples}
    assert lengths == {live.seq_len}
    lengths = {len(each.input_ids) for each in answers_of(pair, mixed).examples}
    assert len(lengths) > 3
    assert max(lengths) <= mixed.seq_len
    assert answers_of(pair, live).examples == answers_of(pair, replace(live, packing=True)).examples

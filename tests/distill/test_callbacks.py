"""Gradient norms, times of steps by phase, and the profile of one step."""

import gzip
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from composer import Event

import distill.callbacks
import distill.trainer
from distill.callbacks import WARM_STEPS, GradientNorm, PhaseClock, profiled_steps
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.model import DistillModel
from distill.train import train
from tests.distill.after_training import assert_equal, last_state, metrics
from tests.rejections import rejects


def a_log() -> Any:
    metrics: dict[str, float] = {}
    return SimpleNamespace(metrics=metrics, log_metrics=metrics.update)


def state_with(*gradients) -> tuple[Any, list[Any]]:
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    model = SimpleNamespace(parameters=lambda: iter([*parameters, torch.nn.Parameter(torch.zeros(1))]))
    return SimpleNamespace(model=model, timestamp=SimpleNamespace(batch=SimpleNamespace(value=7))), parameters


@pytest.mark.parametrize(("threshold", "factor"), [(None, 1.0), (10.0, 1.0), (2.5, 0.5)])
def test_gradients_beyond_the_threshold_are_scaled_down_together(tmp_path, threshold, factor):
    gradients, log = (torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])), a_log()
    state, parameters = state_with(*gradients)
    GradientNorm(tmp_path, threshold).apply(Event.AFTER_TRAIN_BATCH, state, log)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, factor * gradient)
    assert log.metrics == {"l2_norm/grad/global": 5.0}  # before it was bounded


def test_only_the_named_parameters_count(tmp_path):
    state, (first, second) = state_with(torch.tensor([3.0]), torch.tensor([400.0]))
    GradientNorm(tmp_path, 1.5, lambda _: [first]).apply(Event.AFTER_TRAIN_BATCH, state, a_log())
    torch.testing.assert_close(first.grad, torch.tensor([1.5]))
    assert float(second.grad) == 400.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("threshold", [None, 1.0])
def test_gradients_that_are_no_numbers_are_refused(tmp_path, value, threshold):
    state, _ = state_with(torch.tensor([1.0]), torch.tensor([value]))
    with rejects(7, value):
        GradientNorm(tmp_path, threshold).apply(Event.AFTER_TRAIN_BATCH, state, a_log())


def test_a_loss_that_is_no_number_leaves_the_checkpoint_before_it(make_run, monkeypatch):
    recipe, loss, losses = make_run(save_interval="1ba"), DistillModel.loss, []

    def spoilt(model, outputs, batch):
        losses.append(loss(model, outputs, batch))
        return losses[-1] * (math.nan if len(losses) == 3 else 1)

    monkeypatch.setattr(DistillModel, "loss", spoilt)
    with rejects(2, "ep0-ba2-rank0.pt"):
        train(recipe)
    run = Path(recipe.run_dir)
    weights = torch.load(find_checkpoints(run / "checkpoints")[-1], weights_only=False)["state"]["model"]
    assert all(torch.isfinite(weight).all() for weight in weights.values())
    logged = [json.loads(line) for line in (run / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in logged if "l2_norm/grad/global" in line]) == 2


def test_a_step_that_is_skipped_moves_nothing_and_logs_nothing(tmp_path, capsys):
    state, parameters = state_with(torch.tensor([1.0]), torch.tensor([math.nan]))
    log = a_log()
    GradientNorm(tmp_path, 1.0, passes_over=True).apply(Event.AFTER_TRAIN_BATCH, state, log)
    assert [parameter.grad for parameter in parameters] == [None, None]
    assert log.metrics == {}
    assert "batch 7" in capsys.readouterr().err


@pytest.fixture
def clock(monkeypatch):
    """A clock whose hands are moved by hand, and the function that moves them."""
    now = [100.0]
    monkeypatch.setattr("distill.callbacks.time.perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return PhaseClock(on_gpu=False), wait


def test_every_second_belongs_to_one_phase(clock):
    clock, wait = clock
    wait(1)
    clock.switch("data")
    wait(2)
    clock.switch("student")
    wait(4)
    clock.switch("data")
    wait(8)
    assert clock.lap() == {"other": 1, "data": 10, "student": 4}


def test_a_phase_within_another_interrupts_it(clock):
    clock, wait = clock
    clock.switch("student")
    wait(1)
    with clock.phase("teacher"):
        wait(2)
    assert clock.current == "student"
    wait(4)
    assert clock.lap() == {"other": 0, "student": 5, "teacher": 2}


PARTS = ("data", "student forward", "teacher", "loss", "backward", "optimiser")


def parts_of(folder: Path) -> list[str]:
    """Parts of the recorded step, in order."""
    with gzip.open(folder / "step.pt.trace.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    named = [event for event in events if event.get("cat") == "user_annotation" and event["name"] in PARTS]
    return [event["name"] for event in sorted(named, key=lambda event: event["ts"])]


def test_a_profiled_training_run_learns_the_same_to_the_last_bit(make_run, tmp_path, capsys):
    plain, profiled = make_run("plain"), make_run("profiled")
    train(plain)
    train(profiled, tmp_path / "profile")
    for name in ("model", "optimizers"):
        assert_equal(last_state(plain)[name], last_state(profiled)[name])
    assert (tmp_path / "profile" / "step.txt").is_file()
    assert f"batch {WARM_STEPS + 1}" in capsys.readouterr().err
    one = ["student forward", "teacher", "loss", "teacher", "backward"]  # the teacher's head is asked with the loss
    assert parts_of(tmp_path / "profile") == ["data", *one, "optimiser"]
    assert metrics(profiled).keys() == metrics(plain).keys()


def test_parts_are_of_every_microbatch(make_run, tmp_path):
    train(make_run("run", device_train_microbatch_size=1, max_duration="4ba"), tmp_path / "p")
    one = ["student forward", "teacher", "loss", "teacher", "backward"]
    assert parts_of(tmp_path / "p") == ["data", *one * 4, "optimiser"]


def test_only_the_first_process_is_profiled(tmp_path, monkeypatch):
    for rank, count in ((0, 1), (1, 0)):
        monkeypatch.setattr(distill.callbacks.dist, "get_global_rank", lambda rank=rank: rank)
        assert len(profiled_steps(tmp_path)) == count
        assert profiled_steps(None) == []


def test_an_error_in_the_recorded_step_leaves_no_profiler_running(make_run, tmp_path, monkeypatch, capsys):
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == WARM_STEPS + 1:
            raise ZeroDivisionError

    monkeypatch.setattr(distill.trainer.GradientNorm, "apply", fail)
    with pytest.raises(ZeroDivisionError):
        train(make_run(max_duration="5ba"), tmp_path)
    assert "trained 3 steps" in capsys.readouterr().err
    assert not torch.autograd._profiler_enabled()

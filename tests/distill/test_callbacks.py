"""What a training logs, and where: gradient norms, times of steps by phase, metrics, and the profile of one step."""

import gzip
import json
import math
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from composer import Event, Time, Timestamp
from composer.loggers import InMemoryLogger, LoggerDestination

import distill.callbacks
import distill.recipe.sections
import distill.trainer
from distill.callbacks import (
    PHASES,
    WARM_STEPS,
    ConsoleReport,
    GradientNorm,
    MetricsFile,
    PhaseClock,
    build_logger,
    build_loggers,
    profiled_steps,
)
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.model import DistillModel
from distill.train import train
from tests.distill.after_training import assert_same_end, changed, metrics
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
    assert len([record for record in records(recipe) if "l2_norm/grad/global" in record]) == 2


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
    assert_same_end(plain, profiled)
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


def records(recipe) -> list[dict]:
    lines = (Path(recipe.run_dir) / "logs" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def standing(max_duration: str = "100ba", *, wct_s: float = 0.0, **counts: int) -> SimpleNamespace:
    """What loggers read of Composer's state."""
    timestamp = Timestamp(**counts, total_wct=timedelta(seconds=wct_s))
    return SimpleNamespace(timestamp=timestamp, max_duration=Time.from_timestring(max_duration))


def test_every_metric_of_every_batch_is_in_the_file(make_run, monkeypatch):
    recipe, memory = make_run(max_duration="2ep", eval_interval="2ba"), InMemoryLogger()
    monkeypatch.setattr(distill.trainer, "build_loggers", lambda *given: [*build_loggers(*given), memory])
    train(recipe)
    logged = {(name, at.batch.value) for name, values in memory.data.items() for at, _ in values}
    assert {(name, record["batch"]) for record in records(recipe) for name in record if name != "batch"} == logged


def test_lines_beyond_the_checkpoint_and_half_lines_are_dropped(make_run):
    recipe = make_run(max_duration="3ba")
    train(recipe)
    path = Path(recipe.run_dir) / "logs" / "metrics.jsonl"
    before = records(recipe)
    with path.open("a") as file:
        file.write('{"batch": 4, "loss/train/total": 7.0}\n{"batch": 2, "loss/tra')
    train(changed(recipe, max_duration="4ba"))
    after = records(recipe)
    assert after[: len(before)] == before
    assert [record["batch"] for record in after if "loss/train/total" in record] == [0, 1, 2, 3]


def test_a_new_training_starts_a_new_file(make_run):
    recipe = make_run(max_duration="1ba")
    path = Path(recipe.run_dir) / "logs" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_text('{"batch": 0, "metrics/eval/alpha": 0.9}\n')
    train(recipe)
    assert 0.9 not in [record.get("metrics/eval/alpha") for record in records(recipe)]


def test_other_ranks_write_no_file(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    logger = MetricsFile(str(tmp_path / "metrics.jsonl"))
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.write()
    assert not list(tmp_path.iterdir())
    logger.path.write_text("rank 0")
    logger.after_load(standing(), None)
    assert logger.path.read_text() == "rank 0"


def test_every_batch_says_where_its_time_went(make_run):
    start_s = time.monotonic()
    recipe = make_run(max_duration="4ba", eval_interval="2ba")
    train(recipe)
    found = [record for record in records(recipe) if "step/student_s" in record]
    assert [record["batch"] for record in found] == [1, 2, 3, 4]
    for record in found:
        assert min(record[f"step/{phase}_s"] for phase in ("data", "teacher", "student", "optimiser")) > 0
    assert [record["step/save_s"] > 0 for record in found] == [False, True, True, True]
    assert [record["step/evaluation_s"] > 0 for record in found] == [False, False, True, False]
    assert sum(record[f"step/{phase}_s"] for record in found for phase in PHASES) < time.monotonic() - start_s


def test_intervals_of_evaluations_are_logged(make_run):
    recipe = make_run(num_eval=12, max_duration="1ba")
    train(recipe)
    for record in records(recipe):
        if "metrics/eval/alpha" in record:
            assert record["metrics/eval/alpha/low"] < record["metrics/eval/alpha"] < record["metrics/eval/alpha/high"]
            assert record["metrics/eval/tau_7/low"] <= record["metrics/eval/tau_7"]


def test_speed_and_time_left_are_those_of_this_session(monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(distill.callbacks, "time", SimpleNamespace(monotonic=lambda: now_s))
    report, printed = ConsoleReport(), []
    monkeypatch.setattr(report.console, "print", printed.append)
    report.log_metrics({"loss/train/total": 1.5})
    report.fit_start(standing(batch=50, token=5000, wct_s=700.0), None)
    now_s += 40.0  # of which 10 went into training
    report.print_line(standing(batch=75, token=6000, wct_s=710.0))
    assert printed == ["batch 75 (75%): loss 1.5000 nats/token, 100 tokens/s, 0:00:40 left"]


def test_an_error_leaves_the_terminal_usable(make_run, monkeypatch, capsys):
    class Failing(LoggerDestination):
        def batch_end(self, state, logger):
            raise ZeroDivisionError

    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(distill.trainer, "build_loggers", lambda *given: [*build_loggers(*given), Failing()])
    with pytest.raises(ZeroDivisionError) as raised:
        train(make_run(max_duration="1ba"))
    assert "\x1b[?25h" in capsys.readouterr().err  # the cursor is back
    assert raised.traceback  # which still holds the trainer: it was not closed by being forgotten


def test_tensorboard_events_hold_the_metrics(make_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = make_run(max_duration="2ba", loggers={"tensorboard": {}, "file": {}})
    train(recipe)
    events = EventAccumulator(str(Path(recipe.run_dir) / "logs" / "tensorboard" / recipe.run_name))
    events.Reload()
    assert {"loss/train/total", "metrics/eval/alpha", "metrics/eval/greedy_match"} <= set(events.Tags()["scalars"])
    logged = [event.value for event in events.Scalars("metrics/eval/alpha")]
    expected = [record["metrics/eval/alpha"] for record in records(recipe) if "metrics/eval/alpha" in record]
    assert logged == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_an_error_with_the_command(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(distill.recipe.sections, "find_spec", lambda _name: None)
    with rejects(f"distill.loggers.{name}:", f"pip install 'widedraft[{name}]'"):
        build_logger(name, {})


def loggers_of(recipe):
    return build_loggers(recipe.distill, Path(recipe.run_dir) / "logs", recipe.run_name)


@pytest.mark.parametrize(("name", "key"), [("wandb", "name"), ("mlflow", "run_name")])
def test_a_tracker_calls_the_run_by_its_name_unless_told_otherwise(make_run, monkeypatch, name, key):
    monkeypatch.setitem(distill.callbacks.TRACKERS, name, dict)
    monkeypatch.setattr(distill.recipe.sections, "find_spec", lambda _name: True)
    assert loggers_of(make_run("one", loggers={name: {}}))[1:] == [{key: "one"}]
    assert loggers_of(make_run("two", loggers={name: {key: "mine"}}))[1:] == [{key: "mine"}]

"""What a training says, and where."""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from composer import Time, Timestamp
from composer.loggers import InMemoryLogger, LoggerDestination

import distill.recipe.sections
import distill.trainer
from distill.callbacks import PHASES, ConsoleReport, MetricsFile, build_logger, build_loggers
from distill.train import train
from tests.distill.after_training import changed
from tests.rejections import rejects


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

"""What a training says, and where."""

import json
import sys
from pathlib import Path

import pytest
from composer.loggers import TensorboardLogger

import distill.loggers
from architectures.errors import UserError
from distill.loggers import MetricsFile, build_logger, build_loggers
from distill.train import train


def records(recipe) -> list[dict]:
    lines = (Path(recipe.run_dir) / "logs" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def longer(recipe, max_duration: str):
    return recipe.model_copy(update={"distill": recipe.distill.model_copy(update={"max_duration": max_duration})})


def test_a_resumed_training_continues_the_file(make_run):
    recipe = make_run(max_duration="3ba")
    train(recipe)
    before = records(recipe)
    train(longer(recipe, "5ba"))
    after = records(recipe)
    assert after[: len(before)] == before
    assert [record["batch"] for record in after if "loss/train/total" in record] == [0, 1, 2, 3, 4]


def test_lines_beyond_the_checkpoint_and_half_lines_are_dropped(make_run):
    recipe = make_run(max_duration="3ba")
    train(recipe)
    path = Path(recipe.run_dir) / "logs" / "metrics.jsonl"
    before = records(recipe)
    with path.open("a") as file:
        file.write('{"batch": 4, "loss/train/total": 7.0}\n{"batch": 2, "loss/tra')
    train(longer(recipe, "4ba"))
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


def test_the_file_may_lie_elsewhere(make_run, tmp_path):
    recipe = make_run(max_duration="1ba", loggers={"file": {"filename": str(tmp_path / "here.jsonl")}})
    train(recipe)
    assert "loss/train/total" in (tmp_path / "here.jsonl").read_text()
    assert not (Path(recipe.run_dir) / "logs").exists()


def test_no_file_if_none_is_wanted(make_run):
    recipe = make_run(max_duration="1ba", loggers={})
    train(recipe)
    assert not (Path(recipe.run_dir) / "logs").exists()


def test_other_ranks_write_no_file(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    logger = MetricsFile(str(tmp_path / "metrics.jsonl"))
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.write()
    assert not list(tmp_path.iterdir())


def test_lines_on_the_console(make_run, capsys):
    train(make_run(max_duration="4ba", console_log_interval="2ba", eval_interval="4ba"))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("batch ")]
    assert [line.split(":")[0] for line in lines] == ["batch 0", "batch 2 (50%)", "batch 4 (100%)", "batch 4"]
    assert "held-out alpha 0." in lines[0]
    assert " nats/token, " in lines[1]
    assert lines[2].endswith("tokens/s, 0:00:00 left")


def test_a_bar_on_a_terminal(make_run, monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich then takes the captured stream for a terminal
    monkeypatch.setenv("TERM", "xterm")  # and not for a dumb one
    train(make_run(max_duration="4ba", console_log_interval="1ba", eval_interval="4ba"))
    error = capsys.readouterr().err
    assert "nats/token" in error
    assert "held-out alpha" in error
    assert "━" in error
    assert "\x1b[?25h" in error  # the cursor is back


def test_no_bar_if_none_is_wanted(make_run, monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    train(make_run(max_duration="2ba", progress_bar=False, console_log_interval="1ba"))
    error = capsys.readouterr().err
    assert "━" not in error
    assert "batch 2 (100%): loss" in error


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
    monkeypatch.setattr(distill.loggers, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match=rf"distill\.loggers\.{name}: .*`pip install 'widedraft\[{name}\]'`"):
        build_logger(name, {})


def test_arguments_reach_the_tracker(make_run, tmp_path):
    recipe = make_run(loggers={"tensorboard": {"log_dir": str(tmp_path / "board"), "flush_interval": 3}})
    (board,) = [logger for logger in build_loggers(recipe) if isinstance(logger, TensorboardLogger)]
    assert (board.log_dir, board.flush_interval) == (str(tmp_path / "board"), 3)

"""A stage ends as it ends, within its time, and what it had measured by then is kept."""

import json
import re
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as runner
from benchmarks.gpu import machine, stage
from benchmarks.gpu import record as record_module
from benchmarks.gpu.__main__ import main, read_rows, require_device, require_torch, run_stage
from benchmarks.gpu.record import with_earlier
from benchmarks.gpu.stage import SkippedError, attempt_rows, lack_of_memory, number_type
from benchmarks.gpu.stages import STAGES, Listed
from tests.rejections import rejects

HEAD = """from benchmarks.gpu.stage import SkippedError
import os, signal, subprocess, sys, time


def rows(setting):
"""
BODIES = {
    "done": "    yield {'a': 1}\n    yield {'left': setting.left_s > 0, 'size': setting.size}\n",
    "skipped": "    raise SkippedError('no such thing here')\n    yield\n",
    "failed": "    yield {'a': 1}\n    raise ValueError('broken\\nthing')\n",
    "killed": "    yield {'a': 1}\n    os.kill(os.getpid(), signal.SIGKILL)\n",
    "cut": "    yield {'a': 1}\n    subprocess.Popen([sys.executable, '-c', CHILD])\n    time.sleep(600)\n",
}


@pytest.fixture
def run_body(tmp_path, monkeypatch, warm):
    """Runs a stage with a body of its own."""
    monkeypatch.setenv("PYTHONPATH", f"{Path(runner.__file__).parents[2]}:{tmp_path}")
    monkeypatch.setattr(runner, "GRACE_S", 1)
    monkeypatch.setitem(runner.SLACK, "tiny", 1)

    def run(body: str, *, limit_s: float = 60.0, left_s: float = 60.0) -> dict:
        (tmp_path / "own_stage.py").write_text(HEAD + body)
        folders = dict.fromkeys(("target", "prompts", "work", "out"), str(tmp_path))
        told = {"device": "cpu", "size": "tiny", **folders}
        return run_stage("own", Listed(limit_s, 0, "", "own_stage"), told, left_s)

    return run


@pytest.mark.parametrize(
    ("body", "status", "reason", "rows"),
    [
        ("done", "done", None, [{"a": 1}, {"left": True, "size": "tiny"}]),
        ("skipped", "skipped", "no such thing here", []),
        ("failed", "failed", "ValueError: broken thing", [{"a": 1}]),
        ("killed", "failed", "its process ended with code -9", [{"a": 1}]),
    ],
)
def test_how_a_stage_ends(run_body, body, status, reason, rows):
    stage = run_body(BODIES[body])
    assert (stage["status"], stage["reason"], stage["rows"]) == (status, reason, rows)
    assert "argv" not in stage["provenance"]


def test_a_stage_that_takes_too_long_is_cut_off_with_its_children(run_body, tmp_path):
    mark = tmp_path / "mark"
    child = f"import time\nwhile True:\n    open({str(mark)!r}, 'w').write(str(time.time()))\n    time.sleep(0.1)"
    stage = run_body(BODIES["cut"].replace("CHILD", repr(child)), limit_s=4)
    assert (stage["status"], stage["rows"]) == ("cut", [{"a": 1}])
    assert 3 < stage["seconds"] < 15
    time.sleep(0.5)
    before = mark.read_text()
    time.sleep(0.5)
    assert mark.read_text() == before


def test_the_queue_runs_what_is_not_measured_yet_as_far_as_time_goes(tmp_path, monkeypatch):
    begun = []

    def run_now(name, listed, told, left_s):
        begun.append(name)
        rows = [{"a": 1}, *([{"skipped": "no time"}] if name == "tests" else [])]
        return record_module.stage_record("failed" if name == "pair" else "done", None, rows, seconds=1, limit_s=2)

    monkeypatch.setattr(record_module, "DEVICES", tmp_path / "none")
    monkeypatch.setattr(runner, "run_stage", run_now)
    words = ["--size", "tiny", "--out", str(tmp_path / "out"), "--keep", str(tmp_path / "keep")]
    assert main([*words, "--within", "20"]) == 0
    assert begun == [name for name, item in STAGES.items() if item.least_s <= 19]
    begun.clear()
    with pytest.raises(SystemExit):
        main(words)
    assert begun == [name for name, item in STAGES.items() if item.least_s > 19]
    begun.clear()
    with pytest.raises(SystemExit):
        main(words)
    assert begun == ["tests", "pair"]
    begun.clear()
    assert main([*words, "--only", "machine"]) == 0
    assert begun == ["machine"]


def test_an_old_torch_and_a_missing_gpu_are_refused():
    with rejects("2.6.0", "2.7"):
        require_torch("2.6.0")
    with rejects("CUDA"):
        require_device(runner.torch.device("cpu"), "full")


@pytest.mark.usefixtures("warm")
def test_one_stage_again_leaves_the_others_as_they_were(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record_module, "DEVICES", tmp_path / "none")
    words = ["--size", "tiny", "--out", str(tmp_path / "out"), "--keep", str(tmp_path / "keep"), "--only", "machine"]
    assert main(words) == 0
    [file] = (tmp_path / "out").glob("*.json")
    first = json.loads(file.read_text())
    first["stages"]["steps"] = kept = {"status": "done", "reason": None, "seconds": 1, "limit_s": 2, "rows": [{"x": 1}]}
    file.write_text(json.dumps(first))
    assert main(words) == 0
    second = json.loads(file.read_text())
    assert second["stages"]["steps"] == kept
    assert second["stages"]["machine"]["rows"][0]["bandwidth_gb_s"] > 0
    assert {row["dtype"] for row in second["stages"]["machine"]["rows"][1:]} >= {"float32"}
    assert json.loads((tmp_path / "keep" / "work-tiny" / "steps.json").read_text()) == [{"x": 1}]
    assert str(tmp_path) not in file.read_text()
    assert "machine       done" in capsys.readouterr().out
    assert main([*words[:1], "laptop", *words[2:], "--target", str(tmp_path / "keep" / "tiny")]) == 2
    assert "size tiny" in capsys.readouterr().err


def test_a_line_that_was_cut_while_it_was_written_does_not_count(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert read_rows(file) == ([], None)
    file.write_text('{"a": 1}\n{"a": 2}\n{"a": ')
    assert read_rows(file) == ([{"a": 1}, {"a": 2}], None)
    file.write_text('{"a": 1}\n{"end": "done"}\n')
    assert read_rows(file) == ([{"a": 1}], {"end": "done"})


CELL = {"shape": "wide-796m", "how": "captured", "batch": 1, "context": 1024}


def earlier(*rows):
    return {"provenance": {"created": "2026-01-02T03:04:05+00:00"}, "rows": list(rows)}


def step(tokens, **what):
    return CELL | {"tokens": tokens} | what


def test_what_a_later_call_had_no_time_for_keeps_its_earlier_row():
    rows = with_earlier(
        "steps",
        [step(1, seconds=1.0), step(2, skipped="no time"), step(3, failed="a bug"), step(4, skipped="no time")],
        earlier(step(1, seconds=9.0), step(2, seconds=2.0), step(3, seconds=3.0), step(5, seconds=5.0)),
    )
    when = {"measured": "2026-01-02T03:04:05+00:00"}
    assert rows == [
        step(1, seconds=1.0),
        when | step(2, seconds=2.0),
        when | step(3, seconds=3.0),
        when | step(5, seconds=5.0),
        step(4, skipped="no time"),
    ]
    again = with_earlier("steps", [step(1, seconds=0.5)], earlier(*rows) | {"provenance": {"created": "later"}})
    assert again[1] == when | step(2, seconds=2.0)
    assert [row["seconds"] for row in again if "seconds" in row] == [0.5, 2.0, 3.0, 5.0]


def test_rows_that_belong_together_are_made_whole():
    rows = [{"what": "trained"}]
    assert with_earlier("draft", rows, earlier({"what": "other"})) == rows
    assert with_earlier("steps", rows, None) == rows


GIB = 2**30


def test_memory_is_asked_for_with_a_tenth_to_spare(setting, monkeypatch):
    monkeypatch.setattr(stage, "free_bytes", lambda _device: 10 * GIB)
    assert lack_of_memory(setting, 9 * GIB, "a cell") is None
    assert re.findall(r"[\d.]+ GiB", lack_of_memory(setting, 9 * GIB + 1, "a cell")) == ["9.0 GiB", "10.0 GiB"]
    monkeypatch.setattr(stage, "free_bytes", lambda _device: None)
    assert lack_of_memory(setting, 10**15, "a cell") is None


def test_without_bfloat16_numbers_are_float32(setting, monkeypatch):
    monkeypatch.setattr(stage, "has_bfloat16", lambda: False)
    assert number_type(setting.device) == torch.float32
    first, *peaks = machine.rows(setting)
    assert first["dtype"] == "float32"
    assert [row["dtype"] for row in peaks] == ["float32"]


def test_a_gpu_without_bfloat16_instructions_does_not_pretend(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **how: bool(asked.append(how)))
    assert number_type(torch.device("cuda:0")) == torch.float32
    assert asked == [{"including_emulation": False}]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (torch.cuda.OutOfMemoryError("80 GB\nare gone"), {"skipped": "OutOfMemoryError: 80 GB are gone"}),
        (SkippedError("no target"), {"skipped": "no target"}),
        (ZeroDivisionError("x"), {"failed": "ZeroDivisionError: x"}),
    ],
)
def test_what_was_measured_before_an_error_is_kept(error, outcome):
    def measure():
        yield {"cell": 1, "ms": 2.0}
        raise error

    assert list(attempt_rows({"cell": 1}, measure)) == [{"cell": 1, "ms": 2.0}, {"cell": 1} | outcome]

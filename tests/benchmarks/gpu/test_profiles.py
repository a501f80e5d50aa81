"""The stage `profile` at its tiny size: every row has its file, and what fails costs no other."""

import gzip
import json
import time
from dataclasses import replace

import pytest
import torch

from benchmarks.gpu import profiles
from benchmarks.gpu.profiles import figures, rows
from benchmarks.gpu.stage import Setting
from eval.profiling.recording import Profile

CPU = torch.device("cpu")


@pytest.fixture
def setting(tiny_target, tmp_path):
    def make(left_s: float = 600.0) -> Setting:
        deadline_s = time.monotonic() + left_s
        return Setting(CPU, "tiny", tiny_target, tmp_path / "p", tmp_path / "work", tmp_path / "out", deadline_s)

    return make


def test_there_is_a_trace_of_every_cell(setting, tmp_path):
    found = list(rows(setting()))
    assert [(row["what"], row["batch"]) for row in found] == [("round", 1), ("step", 2), ("round", 3)]
    for row in found:
        file = tmp_path / "out" / row["file"]
        assert row["bytes"] == file.stat().st_size <= 16 * 2**20
        assert row["all_bytes"] == sum(path.stat().st_size for path in file.parent.iterdir())
        names = {event["name"] for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]}
        assert row["top_operation"] in names
        assert row["dtype"] in {"bfloat16", "float32"}
        assert "gpu_busy_share" not in row  # says nothing on a processor
        assert all(isinstance(value, str | int | float) for value in row.values())
    one, step, _ = found
    assert 0 < one["draft_ms"] + one["verify_ms"] + one["accept_ms"] <= one["ms"]
    assert min(step[f"{part}_ms"] for part in ("teacher", "student_forward", "loss", "backward", "optimiser")) > 0


def test_what_fails_costs_no_other_cell(setting, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("broken\nthing")

    monkeypatch.setattr(profiles, "build_model", fail)
    first, step, last = rows(setting())
    assert step == {"what": "step", "batch": 2, "dtype": step["dtype"], "failed": "RuntimeError: broken thing"}
    assert (first["how"], last["how"]) == ("eager", "eager")
    assert "file" in first
    assert "file" in last


def test_a_lack_of_memory_is_a_reason(setting, monkeypatch):
    def fill(*_, **__):
        raise torch.cuda.OutOfMemoryError("80 GB are gone")

    monkeypatch.setattr(profiles, "profile_round", fill)
    first, step, last = rows(setting())
    assert first["skipped"] == last["skipped"] == "OutOfMemoryError: 80 GB are gone"
    assert "file" in step


def test_a_gpu_is_asked_for_captured_rounds_too(setting, monkeypatch):
    """Of no time, so that nothing is run: which cells there would be."""
    monkeypatch.setattr(profiles, "number_type", lambda _: torch.bfloat16)
    monkeypatch.setattr(profiles, "lack_of_memory", lambda *_: None)
    cells = rows(replace(setting(0.0), device=torch.device("cuda:0")))
    assert [(row["what"], row.get("how"), row["batch"]) for row in cells] == [
        ("round", "eager", 1),
        ("step", None, 2),
        ("round", "captured", 1),
        ("round", "eager", 3),
        ("round", "captured", 3),
    ]


def test_what_there_is_no_time_for_is_left_out(setting):
    found = list(rows(setting(0.5)))
    assert [row["skipped"].split(" takes")[0] for row in found] == [
        "a profiled round",
        "a profiled step",
        "a profiled round",
    ]


def test_the_share_of_a_gpu_is_among_the_figures(tmp_path):
    trace = tmp_path / "round.pt.trace.json.gz"
    trace.write_bytes(b"12345")
    row = figures(Profile((trace,), 2.5, {"draft": 1.25}, "gemm", 0.25, {"cuda:0": 3 * 2**20}), tmp_path)
    assert row == {
        "file": trace.name,
        "bytes": 5,
        "all_bytes": 5,
        "ms": 2.5,
        "draft_ms": 1.25,
        "peak_cuda_0_mib": 3.0,
        "top_operation": "gemm",
        "gpu_busy_share": 0.25,
    }

"""What is left out says why: too little memory, too little time; and without bfloat16 everything is float32."""

import re

import pytest
import torch

from benchmarks.gpu import machine, stage
from benchmarks.gpu.stage import SkippedError, attempt_rows, lack_of_memory, number_type

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

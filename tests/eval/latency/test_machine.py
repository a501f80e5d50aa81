"""Threads are what was asked for, and the machine's state is what the system says."""

import pytest
import torch

from eval.latency import machine
from eval.latency.machine import (
    gpu_state,
    machine_state,
    memory_bandwidth,
    processor_mhz,
    throttled_periods,
    torch_threads,
    usable_cores,
)


def test_threads_are_set_and_given_back(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    with torch_threads(before + 1) as num_threads:
        assert num_threads == torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(KeyboardInterrupt), torch_threads(before + 1):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == before
    with torch_threads(None) as num_threads:
        assert num_threads == usable_cores()
    assert torch.get_num_threads() == before


def test_threads_are_those_of_the_environment_where_nothing_else_is_asked(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # torch has read it at its start
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with torch_threads(None) as num_threads:
            assert num_threads == 3
        with torch_threads(2) as num_threads:
            assert num_threads == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max 100000\n", None),
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),
        ("190000 100000\n", 1),
        ("999900000 100000\n", None),
    ],
)
def test_the_quota_of_a_container_limits_the_cores(tmp_path, text, limit):
    path = tmp_path / "cpu.max"
    path.write_text(text)
    assert usable_cores(path) == (limit or usable_cores(tmp_path / "absent"))


def test_clocks_of_all_cores(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\ncpu MHz : 2100.5\n\nprocessor : 1\ncpu MHz : 3000.0\n")
    assert processor_mhz(cpuinfo) == (2100.5, 3000.0)
    cpuinfo.write_text("processor : 0\n")
    assert processor_mhz(cpuinfo) is None
    assert processor_mhz(tmp_path / "absent") is None


def test_how_often_a_container_was_stopped(tmp_path):
    statistics = tmp_path / "cpu.stat"
    statistics.write_text("usage_usec 5\nnr_periods 9\nnr_throttled 7\n")
    assert throttled_periods(statistics) == 7
    statistics.write_text("usage_usec 5\n")
    assert throttled_periods(statistics) is None
    assert throttled_periods(tmp_path / "absent") is None


def test_what_nvidia_smi_says(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpu_state() is None
    program.write_text('#!/bin/sh\necho "$1" > "$0.asked"\necho "1980 MHz, 2619 MHz, 31, 120.5 W, 0x0"\n')
    program.chmod(0o755)
    [state] = gpu_state()
    assert (state["clocks.sm"], state["temperature.gpu"]) == ("1980 MHz", "31")
    assert state["clocks_event_reasons.active"] == "0x0"
    assert "clocks.sm,clocks.mem" in (tmp_path / "nvidia-smi.asked").read_text()
    program.write_text("#!/bin/sh\nexit 9\n")
    assert gpu_state() is None


def test_the_state_of_a_processor_has_no_gpu():
    state = machine_state(torch.device("cpu"))
    assert state.load_average >= 0
    assert state.gpu is None


def test_memory_moves_some_gigabytes_a_second():
    bandwidth = memory_bandwidth(torch.device("cpu"), num_bytes=2**24)
    assert set(bandwidth) == {"copy", "read"}
    assert all(1e8 < value < 1e13 for value in bandwidth.values())


@pytest.mark.parametrize("free", [0, 2**24])
def test_bandwidth_takes_no_more_memory_than_there_is(monkeypatch, free):
    monkeypatch.setattr(machine, "BANDWIDTH_BYTES", {"cpu": 2**50})
    monkeypatch.setattr(machine, "free_bytes", lambda device: free)
    assert memory_bandwidth(torch.device("cpu"))["read"] > 0

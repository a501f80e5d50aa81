"""Which engines are started and measured, and what follows from their step times."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from benchmarks.gpu import vllm_steps
from benchmarks.gpu.vllm_engine import EngineError
from benchmarks.gpu.vllm_steps import FULL, NO_DRAFT, PLAIN, TINY, Case, engine_bytes, measure, rows
from benchmarks.gpu.vllm_table import DOC, break_even, costs, main
from eval.speedup import iid_tau

GIB = 2**30
FACTS = {"vllm": "0.25.1", "start_s": 1.0}


@pytest.fixture
def on_gpu(setting, monkeypatch):
    monkeypatch.setattr(vllm_steps, "number_type", lambda _device: torch.bfloat16)
    return replace(setting, device=torch.device("cuda:0"), size="full")


class FakeEngine:
    """Takes 1 ms per step and 2 ms per draft token; fails where its name says so."""

    def __init__(self, name):
        self.name, self.stopped, self.decoded = name, False, []

    def reply(self, timeout_s):
        if "k=1" in self.name:
            raise EngineError(f"{self.name}: out of memory")
        return FACTS

    def decode(self, prompts, new_tokens, timeout_s):
        if "no-draft" in self.name:
            raise EngineError(f"{self.name}: gone")
        self.decoded.append(new_tokens)
        k = int(self.name.partition("k=")[2])
        decode_s = (new_tokens - 1) * (1 + 2 * k) / 1000
        return {"decode_s": decode_s, "steps": new_tokens - 1, "load": 0.5}

    def stop(self):
        self.stopped = True


@pytest.fixture
def waves(monkeypatch):
    """The engines of each wave."""
    found = []

    @contextmanager
    def start(cases, logs):
        found.append({name: FakeEngine(name) for name in cases})
        yield found[-1]

    monkeypatch.setattr(vllm_steps, "running", start)
    monkeypatch.setattr(vllm_steps, "require_vllm", lambda: None)
    return found


def test_each_case_has_a_row_per_batch_size_and_a_failing_one_its_reason(setting, waves):
    found = list(measure([Case(PLAIN, 0), Case(NO_DRAFT, 2), Case("wide", 2), Case("wide", 1)], TINY, setting))
    failed = {row["case"]: row["failed"] for row in found if "failed" in row}
    assert failed == {"wide k=1": "wide k=1: out of memory", "no-draft k=2": "no-draft k=2: gone"}
    times = {(row["case"], row["batch"]): row for row in found if "step_ms" in row}
    assert {cell: row["step_ms"] for cell, row in times.items()} == pytest.approx(
        {("plain k=0", 1): 1, ("plain k=0", 2): 1, ("wide k=2", 1): 5, ("wide k=2", 2): 5}
    )
    assert times["wide k=2", 2]["tokens_per_s"] == pytest.approx(400)
    assert times["wide k=2", 1]["repeats"] == TINY.repeats
    assert waves[1]["wide k=1"].stopped  # before the others are measured


def test_waves_hold_what_fits_into_memory_and_no_more_engines_than_allowed(setting, waves, monkeypatch):
    cases = [Case("wide", k) for k in (2, 3, 4, 5)]
    needed = engine_bytes(cases[0], TINY, setting)
    for free, counts in ((needed * 2.1, [2, 2]), (needed, [1, 1, 1, 1]), (needed * 100, [3, 1])):
        waves.clear()
        monkeypatch.setattr(vllm_steps, "free_bytes", lambda _device, free=free: free)
        list(measure(cases, TINY, setting))
        assert [len(wave) for wave in waves] == counts


def test_measured_cases_are_not_measured_again(setting, waves):
    measured = [{"case": "wide k=2", "batch": batch, "step_ms": 1.0} for batch in TINY.batches]
    measured += [{"case": "wide k=1", "batch": 1, "step_ms": 1.0}, {"case": "wide k=1", "dropped": "wrong"}]
    (setting.work / "vllm_steps.json").write_text(json.dumps(measured))
    assert all(row["run"] for row in rows(setting))
    assert [name for wave in waves for name in wave] == ["plain k=0", "no-draft k=1", "wide k=1"]  # with its baselines
    waves.clear()
    measured += [{"case": "wide k=1", "batch": 2, "step_ms": 1.0}]
    (setting.work / "vllm_steps.json").write_text(json.dumps(measured))
    assert list(rows(setting)) == waves == []


def test_an_engine_of_llama_7b_is_estimated_as_measured(on_gpu):
    """12.55 GiB of weights on the H200, 14.93 with wide-796m."""
    for case, weights in ((Case(PLAIN, 0), 12.55), (Case("wide-796m", 3), 14.93)):
        rest = vllm_steps.cache_bytes(case, FULL, on_gpu) + vllm_steps.OVERHEAD_BYTES
        assert (engine_bytes(case, FULL, on_gpu) - rest) / GIB == pytest.approx(weights, abs=0.01)


def step_rows(draft_ms=0.5, run="2026-11-26T23:45"):
    """Step times of a draft with known costs: V(k) = 5 + k/10."""
    row = {"run": run, "alpha": 0.0, "batch": 1, "step_ms_range": [1, 1], "tokens_per_step": 1.0} | FACTS
    yield row | {"draft": PLAIN, "k": 0, "step_ms": 4.0}
    for k in (1, 3):
        yield row | {"draft": NO_DRAFT, "k": k, "step_ms": 5 + k / 10}
        yield row | {"draft": "wide-796m", "k": k, "step_ms": 5 + k / 10 + k * draft_ms}


def test_costs_of_a_draft_are_found_again():
    [cost] = costs(list(step_rows()))
    assert cost["draft_ms"] == pytest.approx({1: 0.5, 3: 0.5})
    assert cost["cost_ratio"] == pytest.approx(0.5 / 4)
    for k, ratio in ((1, 5.6 / 4), (3, 6.8 / 4)):
        assert iid_tau(cost["break_even"][k], k) == pytest.approx(ratio)
        assert cost["ratios"][k] == pytest.approx(ratio)


def test_costs_compare_what_one_run_measured():
    slow = [row | {"step_ms": 10 * row["step_ms"]} for row in step_rows(run="2027-01-01T00:00") if row["k"] != 3]
    [cost] = costs([*step_rows(), *slow])
    assert cost["draft_ms"] == pytest.approx({1: 5.0, 3: 0.5})  # k=1 of the newer run, with its own baseline
    assert cost["cost_ratio"] == pytest.approx(0.5 / 4)
    assert list(costs([row for row in step_rows() if row["draft"] != PLAIN])) == []


@pytest.mark.parametrize(("ratio", "k", "alpha"), [(1.0, 3, 0.0), (2.0, 1, None), (4.1, 3, None), (1.5, 1, 0.5)])
def test_break_even(ratio, k, alpha):
    assert break_even(ratio, k) == (alpha if alpha is None else pytest.approx(alpha))


def test_the_page_is_what_the_files_of_devices_have(tmp_path, monkeypatch):
    copy = tmp_path / "benchmarks.md"
    copy.write_text(DOC.read_text())
    monkeypatch.setattr("benchmarks.gpu.vllm_table.DOC", copy)
    main()
    assert copy.read_text() == DOC.read_text()

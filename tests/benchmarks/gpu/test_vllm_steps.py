"""Which engines are started and measured, and what follows from their step times."""

import json
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import vllm_steps
from benchmarks.gpu.stage import Setting, SkippedError
from benchmarks.gpu.vllm_engine import EngineError
from benchmarks.gpu.vllm_steps import FULL, NO_DRAFT, PLAIN, TINY, Case, engine_bytes, engine_kwargs, measure, rows
from benchmarks.gpu.vllm_table import ALPHAS, DOC, break_even, costs, main, section
from eval.speedup import iid_tau

GIB = 2**30
FACTS = {"vllm": "0.25.1", "start_s": 1.0}


@pytest.fixture
def setting(tmp_path):
    folders = dict.fromkeys(("target", "prompts", "work", "out"), Path(tmp_path))
    return Setting(torch.device("cpu"), "tiny", **folders, deadline_s=time.monotonic() + 600)


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


def test_what_no_time_is_left_for_is_skipped(setting, waves):
    late = replace(setting, deadline_s=time.monotonic() + 10)
    found = list(measure([Case(PLAIN, 0), Case("wide", 2)], TINY, late))
    assert [row["case"] for row in found if "skipped" in row] == ["plain k=0", "wide k=2"]
    assert waves == []


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


def test_without_vllm_the_item_is_skipped(setting, monkeypatch):
    monkeypatch.setenv("WIDEDRAFT_VLLM", "/bin/false")
    with pytest.raises(SkippedError, match="/bin/false"):
        next(rows(setting))


def test_kwargs_of_an_engine_on_a_gpu(on_gpu):
    kwargs = engine_kwargs(Case("wide-796m", 3), FULL, on_gpu)
    assert (kwargs["load_format"], kwargs["dtype"], kwargs["enforce_eager"]) == ("dummy", "bfloat16", False)
    speculative = kwargs["speculative_config"]
    assert (speculative["method"], speculative["num_speculative_tokens"]) == ("draft_model", 3)
    assert speculative["synthetic_acceptance_rates"] == [0, 0, 0]
    assert (Path(speculative["model"]) / "config.json").is_file()
    checked = engine_kwargs(Case("wide-796m", 3, 0.5), FULL, on_gpu)["speculative_config"]
    assert checked["synthetic_acceptance_rates"] == [0.5, 0.25, 0.125]
    assert "speculative_config" not in engine_kwargs(Case(PLAIN, 0), FULL, on_gpu)


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
        assert [cost["speedup"][k, alpha] for alpha in ALPHAS] == pytest.approx(
            [iid_tau(alpha, k) / ratio for alpha in ALPHAS]
        )


def test_costs_compare_what_one_run_measured():
    slow = [row | {"step_ms": 10 * row["step_ms"]} for row in step_rows(run="2027-01-01T00:00") if row["k"] != 3]
    [cost] = costs([*step_rows(), *slow])
    assert cost["draft_ms"] == pytest.approx({1: 5.0, 3: 0.5})  # k=1 of the newer run, with its own baseline
    assert cost["cost_ratio"] == pytest.approx(0.5 / 4)
    assert list(costs([row for row in step_rows() if row["draft"] != PLAIN])) == []


@pytest.mark.parametrize(("ratio", "k", "alpha"), [(1.0, 3, 0.0), (2.0, 1, None), (4.1, 3, None), (1.5, 1, 0.5)])
def test_break_even(ratio, k, alpha):
    assert break_even(ratio, k) == (alpha if alpha is None else pytest.approx(alpha))


def test_a_section_has_costs_and_the_measured_check():
    checked = {"draft": "wide-796m", "k": 3, "alpha": 0.7, "batch": 1, "step_ms": 7.0, "tokens_per_s": 500.0}
    checked |= {"run": "2026-11-26T23:45"}
    stage = {
        "rows": [
            *step_rows(),
            checked | {"tokens_per_step": 2.5, "step_ms_range": [1, 1]},
            {"case": "x", "skipped": "y"},
        ],
        "provenance": {"created": "2026-11-26T23:00:00"},
    }
    steps = [
        {"shape": shape, "how": "captured", "batch": 1, "context": 128, "tokens": tokens, "median_ms": ms}
        for shape, tokens, ms in (
            ("llama-7b", 1, 7.0),
            ("llama-7b", 4, 8.0),
            ("wide-796m", 1, 0.7),
            ("wide-796m", 2, 0.8),
        )
    ]
    record = {"device": "Some GPU", "torch": "2.11.0", "stages": {"vllm_steps": stage, "steps": {"rows": steps}}}
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section(record).splitlines() if "|" in line]
    [cost, even, speed, check] = [line for line in cells if line[0] == "wide-796m"]
    assert cost[1:4] == ["5", "1", "4"]
    assert cost[-6:] == ["0.5", "0.5", "0.125", "7", "0.7", "0.1"]
    assert len(even) == 4
    assert len(speed) == 2 + len(ALPHAS)
    assert check[1:] == ["3", "0.7", "1", "2.5", "2", f"{iid_tau(0.7, 3) * 4 / 6.8:.3g}"]


def test_the_page_is_what_the_files_of_devices_have(tmp_path, monkeypatch):
    copy = tmp_path / "benchmarks.md"
    copy.write_text(DOC.read_text())
    monkeypatch.setattr("benchmarks.gpu.vllm_table.DOC", copy)
    main()
    assert copy.read_text() == DOC.read_text()

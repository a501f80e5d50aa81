"""The number of threads that `auto` picks, by steps of the target; and what of it commands write."""

import json

import pytest
import torch

import widedraft
from architectures.errors import UserError
from eval import machine
from eval.latency import chosen_threads
from eval.machine import Started, Threads, default_threads, pick_threads, step_by_threads, thread_counts, usable_cores
from eval.records.evidence import ThreadStep


def took(**ms):
    return tuple(ThreadStep(threads=int(count.removeprefix("t")), ms=value) for count, value in ms.items())


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 3]), (8, [1, 4, 8]), (64, [1, 32, 64])])
def test_one_half_and_all_are_tried(most, counts):
    assert thread_counts(most) == counts


@pytest.mark.parametrize(
    ("tried", "picked"),
    [
        (took(t1=1.5, t2=105.0), 1),
        (took(t1=60.0, t2=40.0), 2),
        (took(t1=90.0, t4=30.0, t8=40.0), 4),
        (took(t1=90.0, t4=30.0, t8=29.5), 4),  # so close that four cores are left to others
        (took(t1=90.0, t4=30.0, t8=28.0), 8),
    ],
)
def test_the_fastest_is_picked_and_of_close_ones_the_smallest(monkeypatch, tried, picked):
    monkeypatch.setattr(machine, "step_by_threads", lambda step, counts: tried)
    assert pick_threads("auto", lambda: None) == Threads(picked, tried)


@pytest.mark.parametrize(("requested", "count"), [(None, None), (2, 2)])
def test_nothing_is_loaded_or_timed_for_a_number(requested, count):
    before = torch.get_num_threads()
    with chosen_threads(requested, lambda: pytest.fail("loaded")) as picked:
        assert picked == Threads(count or default_threads())
        assert torch.get_num_threads() == picked.count
    assert torch.get_num_threads() == before


def test_steps_are_taken_with_each_number_in_interleaved_runs(monkeypatch):
    monkeypatch.setattr(machine, "VISIT_S", 0.0)
    monkeypatch.setattr(machine, "VISITS", 2)
    counts = []
    found = step_by_threads(lambda: counts.append(torch.get_num_threads()) or 0.002, [1, 2])
    assert [step.threads for step in found] == [1, 2]
    assert all(step.ms == pytest.approx(2) for step in found)
    assert counts == [1, 1, 2, 2] * 2  # the first of each visit uncounted


def test_a_gpu_has_no_threads_to_pick():
    class OnDevice:
        device = torch.device("cuda")

    with pytest.raises(UserError, match="num_threads=auto"), chosen_threads("auto", OnDevice):
        pass


def test_evidence_names_the_threads():
    tried = took(t1=9.0)
    evidence = Started().evidence(tried)
    assert (evidence.threads, evidence.by_threads) == (torch.get_num_threads(), tried)
    assert Threads(1, tried).noted(evidence).chosen_from == tried


@pytest.mark.parametrize(("limit", "most"), [("max 100000", None), ("150000 100000", 1)])
def test_the_quota_of_a_container_limits_cores(tmp_path, limit, most):
    path = tmp_path / "cpu.max"
    path.write_text(limit)
    assert usable_cores(path) <= (most or usable_cores(tmp_path / "absent"))


@pytest.mark.parametrize(
    "words",
    [
        ["--grid", "--batch-sizes", 1, "--contexts", 8, "--lookaheads", 1, "--repeats", 6],
        ["--lookaheads", 1, "--num-prompts", 1, "--max-new-tokens", 4],
    ],
)
def test_a_benchmark_writes_what_auto_picked(target_folder, noisy_folder, tmp_path, monkeypatch, words):
    monkeypatch.setattr(machine, "step_by_threads", lambda step, counts: took(t1=9.0, t2=4.0))
    out = tmp_path / "out.json"
    pair = ["--target", target_folder, "--draft", noisy_folder, "--num-threads", "auto", "--dtype", "float32"]
    assert widedraft.main(["benchmark", *map(str, [*pair, *words, "--out", out])]) == 0
    written = json.loads(out.read_text())
    evidence = written["cells"][0]["evidence"] if "--grid" in words else written["steps"]["evidence"]
    assert written["threads"] == evidence["threads"] == 2
    assert [step["threads"] for step in evidence["chosen_from"]] == [1, 2]

"""The number of threads that `auto` picks, by steps of the target; and what a scorecard keeps of it."""

import pytest
import torch

from architectures.errors import UserError
from eval.latency import threads
from eval.latency.evidence import Started, least_on_one_thread, one_thread_rates, step_evidence
from eval.latency.floor import step_bytes
from eval.latency.machine import default_threads
from eval.latency.steps import Setting
from eval.latency.threads import Threads, chosen_threads, fastest, step_by_threads, thread_counts
from eval.records.evidence import ThreadStep
from eval.records.grid import TARGET


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
def test_the_fastest_is_picked_and_of_close_ones_the_smallest(tried, picked):
    assert fastest(tried) == picked


def test_auto_runs_with_what_it_picked_and_gives_it_back(monkeypatch, capsys):
    tried = took(t1=9.0, t3=4.0)
    monkeypatch.setattr(threads, "tried_threads", lambda target, batch: tried)
    before = torch.get_num_threads()
    with chosen_threads("auto", lambda: None) as picked:
        assert picked == Threads(3, tried)
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
    assert capsys.readouterr().out == (
        "num_threads=auto: 3 threads, by the target's step (1 thread: 9 ms, 3 threads: 4 ms)\n"
    )


@pytest.mark.parametrize(("asked", "count"), [(None, None), (2, 2)])
def test_nothing_is_loaded_or_timed_for_a_number(asked, count):
    with chosen_threads(asked, lambda: pytest.fail("loaded")) as picked:
        assert picked == Threads(count or default_threads())


def test_steps_are_taken_with_each_number(target, monkeypatch):
    monkeypatch.setattr(threads, "VISIT_S", 0.0)
    monkeypatch.setattr(threads, "VISITS", 2)
    counts = []
    monkeypatch.setattr(threads, "time_step", lambda *_, **__: counts.append(torch.get_num_threads()) or 0.002)
    found = step_by_threads(target, Setting([1] * 5), [1, 2])
    assert [step.threads for step in found] == [1, 2]
    assert all(step.ms == pytest.approx(2) for step in found)
    assert counts == [1, 1, 2, 2] * 2  # in turns, the first of each visit uncounted


def test_an_accelerator_has_no_processor_threads_to_pick(target, monkeypatch):
    class OnDevice:
        device = torch.device("cuda")

    with (
        pytest.raises(UserError, match=r"num_threads=auto picks processor threads .* taken on cuda"),
        chosen_threads("auto", OnDevice),
    ):
        pass


def test_what_a_step_must_take_on_one_thread(target):
    setting = Setting([1] * 5, 2)
    num_bytes = step_bytes(target, batch=2, context=5)
    assert least_on_one_thread(target, setting, 1e9, 1e30) == pytest.approx(1000 * num_bytes / 1e9)
    assert least_on_one_thread(target, setting, 1e30, 1e9) > 0
    bytes_per_s, flops_per_s = one_thread_rates(torch.float32)
    assert 1e8 < bytes_per_s < 1e13
    assert 1e8 < flops_per_s < 1e14


def test_evidence_is_of_every_model_and_of_fewer_threads(target, noisy_draft, monkeypatch):
    monkeypatch.setattr(threads, "VISITS", 1)
    monkeypatch.setattr(threads, "VISIT_S", 0.0)
    models = {TARGET: target, "draft": noisy_draft}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = step_evidence(models, {TARGET: 2.0, "draft": 1.0}, Setting([1] * 5), Started())
    finally:
        torch.set_num_threads(before)
    assert found.threads == 2
    assert [step.threads for step in found.by_threads] == [1, 2]
    assert [(step.model, step.ms) for step in found.steps] == [(TARGET, 2.0), ("draft", 1.0)]
    assert all(step.least_ms is not None for step in found.steps)
    assert found.load_average >= 0

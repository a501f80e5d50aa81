"""Steps of the target by number of threads, and the cores that a process may use."""

import pytest
import torch

from eval import machine
from eval.machine import step_by_threads, thread_counts, usable_cores


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 3]), (8, [1, 4, 8]), (64, [1, 32, 64])])
def test_one_half_and_all_are_tried(most, counts):
    assert thread_counts(most) == counts


def test_steps_are_taken_with_each_number_in_interleaved_runs(monkeypatch):
    monkeypatch.setattr(machine, "VISIT_S", 0.0)
    monkeypatch.setattr(machine, "VISITS", 2)
    counts = []
    found = step_by_threads(lambda: counts.append(torch.get_num_threads()) or 0.002, [1, 2])
    assert [step.threads for step in found] == [1, 2]
    assert all(step.ms == pytest.approx(2) for step in found)
    assert counts == [1, 1, 2, 2] * 2  # the first of each visit uncounted


@pytest.mark.parametrize(("limit", "most"), [("max 100000", None), ("150000 100000", 1)])
def test_the_quota_of_a_container_limits_cores(tmp_path, limit, most):
    path = tmp_path / "cpu.max"
    path.write_text(limit)
    assert usable_cores(path) <= (most or usable_cores(tmp_path / "absent"))

"""What a processor can do: the most of all that was measured, so that a busy moment does not stand."""

from itertools import chain, repeat

import pytest
import torch

from distill.monitoring import processor_speed
from distill.monitoring.processor_speed import PROBE_RUNS, measured_cpu_flops
from distill.train import train
from tests.distill.after_training import metrics


def test_a_processor_does_at_least_a_million_products_a_second():
    assert measured_cpu_flops(torch.float32) > 1e6


@pytest.mark.parametrize(("flops", "size"), [(1e9, 256), (1e11, 1024), (1e6, 128)])
def test_a_slow_processor_is_asked_for_less_and_found_as_fast_as_it_is(monkeypatch, flops, size):
    asked = []

    def taken_s(square: torch.Tensor) -> float:
        asked.append(len(square))
        return 2 * len(square) ** 3 / flops

    monkeypatch.setattr(processor_speed, "PROBE_SIZE", 1024)
    monkeypatch.setattr(processor_speed, "FIRST_SIZE", 128)
    monkeypatch.setattr(processor_speed, "time_product", taken_s)
    assert measured_cpu_flops(torch.bfloat16) == pytest.approx(flops)
    assert max(asked) == size
    assert asked[-PROBE_RUNS:] == [size] * PROBE_RUNS


def test_the_most_that_was_measured_counts(make_run, monkeypatch):
    asked, found = [], chain([1e6, 4e30], repeat(2e6))

    def measured(dtype: torch.dtype) -> float:
        asked.append(dtype)
        return next(found)

    monkeypatch.setattr(processor_speed, "measured_cpu_flops", measured)
    recipe = make_run(max_duration="26ba", console_log_interval="12ba", precision="fp32")
    train(recipe)
    assert asked == [torch.float32] * 3  # at the start, after 12 and after 24 batches
    used = {batch: found["throughput/device/mfu"] for batch, found in metrics(recipe).items() if batch > 10}
    assert used[11] > 1e-4
    assert max(used[batch] for batch in range(12, 27)) < 1e-12

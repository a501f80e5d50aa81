"""Break-even by step times whose answer is known by hand."""

import json
import time

import pytest
import torch

from benchmarks.gpu.break_even import STEPS, break_even_rows, rows
from benchmarks.gpu.stage import Setting, SkippedError


def step(shape, tokens, median_ms, *, how="captured", batch=1, context=128):
    return {
        "shape": shape, "how": how, "batch": batch, "context": context, "tokens": tokens, "median_ms": median_ms,
    }  # fmt: skip


def shape_steps(shape, one_ms, two_ms, **place):
    return [step(shape, 1, one_ms, **place), step(shape, 2, two_ms, **place)]


TARGET = [step("llama-7b", 1, 10.0), step("llama-7b", 2, 10.0), step("llama-7b", 3, 10.0)]


def alphas(found):
    return {(row["shape"], row["lookahead"]): row["alpha"] for row in found}


def test_a_step_of_a_quarter_pays_from_a_quarter_on():
    """At lookahead 1, 1 + alpha = 1 + 2.5 / 10; at 2, alpha + alpha^2 = 2 * 2.5 / 10."""
    found = alphas(break_even_rows([*TARGET, *shape_steps("wide-796m", 2.5, 2.5)], "llama-7b"))
    assert found[("wide-796m", 1)] == pytest.approx(0.25)
    assert found[("wide-796m", 2)] == pytest.approx((3**0.5 - 1) / 2)


def test_catching_up_and_verifying_count():
    """(1 + alpha) 10 = 2 + alpha (4 - 2) + 12 at lookahead 1: alpha = 1/2."""
    steps = [step("llama-7b", 1, 10.0), step("llama-7b", 2, 12.0), *shape_steps("wide-1.3b", 2.0, 4.0)]
    assert alphas(break_even_rows(steps, "llama-7b")) == {("wide-1.3b", 1): pytest.approx(0.5)}


def test_a_draft_as_slow_as_its_target_never_pays():
    found = alphas(break_even_rows([*TARGET, *shape_steps("deep-1.3b", 10.0, 10.0)], "llama-7b"))
    assert found == {("deep-1.3b", 1): None, ("deep-1.3b", 2): None}


def test_places_are_not_mixed_and_what_is_missing_is_left_out():
    elsewhere = [step("llama-7b", tokens, 20.0, batch=8) for tokens in (1, 2)]
    steps = [
        *TARGET,
        *elsewhere,
        *shape_steps("a", 2.5, 2.5, batch=8),
        step("b", 1, 1.0),
        *shape_steps("c", 1.0, 1.0, how="eager"),
        {"shape": "d", "how": "captured", "batch": 1, "context": 128, "skipped": "too large"},
        {"aim": "captured 5-layer step at 80 % of its floor", "reached": 0.5},
    ]
    [row] = break_even_rows(steps, "llama-7b")
    assert row == {
        "target": "llama-7b", "shape": "a", "how": "captured", "batch": 8, "context": 128, "lookahead": 1,
        "alpha": pytest.approx(0.125),
    }  # fmt: skip


def test_rows_are_made_of_what_the_steps_stage_left(tmp_path):
    setting = Setting(torch.device("cpu"), "full", tmp_path, tmp_path, tmp_path, tmp_path, time.monotonic())
    with pytest.raises(SkippedError, match="the stage steps has not been run"):
        list(rows(setting))
    (tmp_path / STEPS).write_text(json.dumps([*TARGET, *shape_steps("wide-796m", 2.5, 2.5)]))
    assert [row["lookahead"] for row in rows(setting)] == [1, 2]

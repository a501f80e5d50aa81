"""The gradients' norm: what it is, how it bounds a step, and that a training ends before it learns from none."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from composer import Event

from architectures.errors import UserError
from distill.checkpoints.files import find_checkpoints
from distill.monitoring.gradient_norm import GradientNorm, total_norm
from distill.train import train
from distill.training.model import DistillModel


def a_log() -> Any:
    metrics: dict[str, float] = {}
    return SimpleNamespace(metrics=metrics, log_metrics=metrics.update)


def state_with(*gradients) -> tuple[Any, list[Any]]:
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    model = SimpleNamespace(parameters=lambda: iter([*parameters, torch.nn.Parameter(torch.zeros(1))]))
    return SimpleNamespace(model=model, timestamp=SimpleNamespace(batch=SimpleNamespace(value=7))), parameters


def test_the_norm_is_that_of_all_gradients_together():
    assert float(total_norm([torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])])) == 5.0


@pytest.mark.parametrize(("threshold", "factor"), [(None, 1.0), (10.0, 1.0), (2.5, 0.5)])
def test_gradients_beyond_the_threshold_are_scaled_down_together(tmp_path, threshold, factor):
    gradients, log = (torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])), a_log()
    state, parameters = state_with(*gradients)
    GradientNorm(tmp_path, threshold).apply(Event.AFTER_TRAIN_BATCH, state, log)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, factor * gradient)
    assert log.metrics == {"l2_norm/grad/global": 5.0}  # before it was bounded


def test_only_the_named_parameters_count(tmp_path):
    state, (first, second) = state_with(torch.tensor([3.0]), torch.tensor([400.0]))
    GradientNorm(tmp_path, 1.5, lambda _: [first]).apply(Event.AFTER_TRAIN_BATCH, state, a_log())
    torch.testing.assert_close(first.grad, torch.tensor([1.5]))
    assert float(second.grad) == 400.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("threshold", [None, 1.0])
def test_gradients_that_are_no_numbers_are_refused(tmp_path, value, threshold):
    state, _ = state_with(torch.tensor([1.0]), torch.tensor([value]))
    with pytest.raises(UserError, match=rf"gradients of batch 7 have norm {value}.* there is no checkpoint yet"):
        GradientNorm(tmp_path, threshold).apply(Event.AFTER_TRAIN_BATCH, state, a_log())


@pytest.mark.parametrize("clipping", [{"clipping_threshold": 1.0}, None], ids=["bounded", "unbounded"])
def test_a_loss_that_is_no_number_leaves_the_checkpoint_before_it(make_run, monkeypatch, clipping):
    recipe, loss, losses = make_run(save_interval="1ba", gradient_clipping=clipping), DistillModel.loss, []

    def spoilt(model, outputs, batch):
        losses.append(loss(model, outputs, batch))
        return losses[-1] * (math.nan if len(losses) == 3 else 1)

    monkeypatch.setattr(DistillModel, "loss", spoilt)
    with pytest.raises(UserError, match=r"gradients of batch 2 have norm nan.*ep0-ba2-rank0\.pt stays usable"):
        train(recipe)
    run = Path(recipe.run_dir)
    weights = torch.load(find_checkpoints(run / "checkpoints")[-1], weights_only=False)["state"]["model"]
    assert all(torch.isfinite(weight).all() for weight in weights.values())
    logged = [json.loads(line) for line in (run / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in logged if "l2_norm/grad/global" in line]) == 2

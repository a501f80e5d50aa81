"""Losses of a masked student: what they are, what they reach, and what they leave alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from architectures.hub import read_config
from architectures.pruning.masks import Masks, masked
from architectures.shapes import Shape
from distill.chunked_loss import ResponseLogits, logits_of
from distill.learned_masks import MaskModel
from distill.teacher import Teacher

IDS = torch.arange(3, 43).reshape(2, 20) % 250 + 3


def build(folder: Path) -> MaskModel:
    source = Shape.from_config(read_config(folder))
    student, teacher = (AutoModelForCausalLM.from_pretrained(folder, dtype="auto") for _ in range(2))
    return MaskModel(
        ResponseLogits(student),
        Masks(source, replace(source, layers=2, intermediate=64), seed=5),
        Teacher(ResponseLogits(teacher)),
        warmup_batches=10,
        cpu_bfloat16=False,
    )


def losses(model: MaskModel) -> dict[str, torch.Tensor]:
    batch = {"input_ids": IDS}
    return model.loss(model(batch), batch)


def test_losses_are_those_of_whole_logits(tiny_target):
    model = build(tiny_target)
    model.step = 4
    with torch.no_grad():
        for values in model.masks.log_alpha.values():
            values.fill_(0.3)
        for values in model.masks.multipliers.values():
            values.fill_(1.5)
        found = losses(model)
        target = model.teacher.model.lm(IDS).logits[:, :-1].log_softmax(-1)
        with masked(model.student.lm, model.masks.sampled(4), model.masks.source):
            student = model.student.lm(IDS).logits[:, :-1].log_softmax(-1)
        lm = cross_entropy(student.flatten(0, 1), IDS[:, 1:].flatten())
        kl = (target.exp() * (target - student)).sum(-1).mean()
    assert float(found["lm"]) == pytest.approx(float(lm), rel=1e-5)
    assert float(found["kl"]) == pytest.approx(float(kl), rel=1e-4)
    assert float(kl) > 0.01
    assert float(found["constraint"]) == pytest.approx(float(model.masks.lagrangian(0.4)), rel=1e-6)
    assert float(found["total"]) == pytest.approx(float(lm + kl + found["constraint"]), rel=1e-5)


@pytest.mark.parametrize("size", [1, 7, 38, 100])
def test_chunks_do_not_change_losses_or_gradients(tiny_target, monkeypatch, size):
    gradients, values = [], []
    for tokens in (10**6, size):
        monkeypatch.setattr("distill.chunked_loss.chunk_size", lambda _, tokens=tokens: tokens)
        model = build(tiny_target)
        found = losses(model)
        found["total"].backward()
        values.append(float(found["total"].detach()))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[0].norm()


def test_nothing_to_learn_where_all_gates_are_open(tiny_target):
    model = build(tiny_target)
    with torch.no_grad():
        for values in model.masks.log_alpha.values():
            values.fill_(50.0)
    assert float(losses(model)["kl"].detach()) == pytest.approx(0.0, abs=1e-6)


def test_gradients_reach_weights_masks_and_multipliers_and_not_the_teacher(tiny_target):
    model = build(tiny_target)
    model.step = 3
    losses(model)["total"].backward()
    named = dict(model.named_parameters())
    assert all(parameter.grad is not None for parameter in named.values())
    assert {name.split(".")[0] for name in named} == {"student", "masks"}
    assert all(parameter.grad is None for parameter in model.teacher.model.parameters())
    assert not any(name.startswith("teacher") for name in model.state_dict())
    assert {name for name in named if name.startswith("masks")} == {
        f"masks.{kind}.{axis}" for kind in ("log_alpha", "multipliers") for axis in ("layers", "neurons")
    }


def test_progress_is_linear_and_ends(tiny_target):
    model = build(tiny_target)
    for step, progress in ((0, 0.0), (5, 0.5), (10, 1.0), (11, 1.0)):
        model.step = step
        assert model.progress == progress


def test_gates_follow_the_step_alone(tiny_target):
    model, other = build(tiny_target), build(tiny_target)
    with torch.no_grad():
        for each in (model, other):
            for values in each.masks.log_alpha.values():
                values.fill_(0.0)
    model.step = other.step = 6
    first = losses(model)["lm"]
    torch.rand(3)
    assert torch.equal(losses(other)["lm"], first)
    other.step = 7
    assert not torch.equal(losses(other)["lm"], first)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gemma2", "final_logit_softcapping": 1.5, "query_pre_attn_scalar": 16},
        {"model_type": "granite", "logits_scaling": 3.0},
    ],
    ids=lambda config: config["model_type"],
)
def test_logits_of_responses_are_capped_and_divided_as_the_model_does(make_checkpoint, config):
    folder = make_checkpoint(**config)
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    keep = torch.ones_like(IDS, dtype=torch.bool)
    with torch.inference_mode():
        torch.testing.assert_close(ResponseLogits(lm)(IDS, keep, logits_of), lm(IDS).logits.flatten(0, 1))

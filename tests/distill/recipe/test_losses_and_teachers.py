"""Every loss beside every teacher, as one table: it is learned, or refused, and for which reason.

Shape suffixes: A = response tokens, V = vocabulary entries.
"""

import re
from pathlib import Path

import pytest
import torch

from distill.losses import LOSSES, LossTerm, build_objective
from distill.teacher_cache import sampled_rows, top_k_rows, uniform_numbers, widen

# Which teachers serve a loss: all that tell enough of the distribution it compares with.
SERVED = {name: ["live", "hidden"] for name in LOSSES} | {
    "forward_kl": ["live", "hidden", "top_k", "samples"],
    "cross_entropy": ["live", "hidden", "top_k", "samples", "none"],
}


def page(name):
    return (Path(__file__).parents[3] / "docs" / name).read_text(encoding="utf-8").splitlines()


def what_it_says(teacher, logits_AV):
    """Of tokens with these logits; None where nobody is asked."""
    if teacher == "top_k":
        return widen(top_k_rows(logits_AV, 3))
    if teacher == "samples":
        return widen(sampled_rows(logits_AV, uniform_numbers(len(logits_AV), 4, seed=1)))
    return None if teacher == "none" else logits_AV


def test_the_page_of_losses_has_every_option_with_its_default():
    lines = page("train.md")
    rows = [line.split("|") for line in lines[lines.index("## Losses") :] if line.startswith("| `")]
    said = {row[1].strip(" `"): row[3] for row in rows[: len(LOSSES)]}
    assert list(said) == list(LOSSES)
    for name, options in said.items():
        found = {option: float(value) for option, value in re.findall(r"`(\w+)`[^=]*= ([\d.]+)", options)}
        assert found == LossTerm(name=name).parameters, name


@pytest.mark.parametrize(("loss", "teacher"), [(loss, teacher) for loss in SERVED for teacher in SERVED[loss]])
def test_what_is_taken_is_learned(loss, teacher):
    """From what such a teacher says, by gradients that are there and finite."""
    generator = torch.Generator().manual_seed(0)
    student_AV, teacher_AV = (torch.randn(7, 11, generator=generator) for _ in range(2))
    student_AV.requires_grad_()
    objective = build_objective(loss, temperature=1.0)
    assert objective.needs_teacher == (loss != "cross_entropy")
    losses_A = objective(student_AV, what_it_says(teacher, teacher_AV), torch.arange(7))
    losses_A.sum().backward()
    assert losses_A.shape == (7,)
    assert losses_A.isfinite().all()
    assert student_AV.grad is not None
    assert student_AV.grad.isfinite().all()
    assert student_AV.grad.abs().sum() > 0

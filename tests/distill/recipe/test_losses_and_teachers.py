"""Every loss beside every teacher, as one table; what a teacher fills in, and the bytes it takes.

Shape suffixes: A = response tokens, V = vocabulary entries.
"""

import re
from pathlib import Path

import pytest
import torch

from distill.losses import LOSSES, LossTerm, build_objective
from distill.recipe.recipe import load_recipe, save_recipe
from distill.recipe.sections import TeacherConfig, bytes_per_token
from distill.teacher_cache import sampled_rows, top_k_rows, uniform_numbers, widen
from tests.distill.recipe_files import BASE

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


CACHES = {
    name: TeacherConfig.model_validate({"source": "cache", "contents": name}) for name in ("hidden", "top_k", "samples")
}


@pytest.mark.parametrize(
    ("teacher", "loss"),
    [
        ("{}", "negative_log_acceptance"),
        ("{source: cache}", "negative_log_acceptance"),
        ("{source: cache, contents: top_k}", "forward_kl"),
        ("{source: cache, contents: samples}", "forward_kl"),
        ("{source: none}", "cross_entropy"),
    ],
)
def test_a_recipe_without_a_loss_gets_one_that_its_teacher_serves(tmp_path, teacher, loss):
    (tmp_path / "r.yaml").write_text(f"{BASE}distill: {{teacher: {teacher}}}\n")
    recipe = load_recipe(tmp_path / "r.yaml")
    assert (recipe.distill.loss, [term.name for term in recipe.distill.terms]) == (loss, [loss])
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe


@pytest.mark.parametrize(
    ("teacher", "vocab", "dtype", "expected"),
    [
        (CACHES["hidden"], 32000, "bfloat16", 8192),  # method notes 6.4
        (CACHES["hidden"], 32000, "float32", 16384),
        (CACHES["top_k"], 32000, "bfloat16", 256 + 4),
        (TeacherConfig(source="cache", contents="top_k", k=8), 151936, "bfloat16", 8 * 6 + 4),
        (CACHES["samples"], 32000, "bfloat16", 24),
        (TeacherConfig(source="cache", contents="samples", num_samples=50), 128256, "bfloat16", 200),
    ],
)
def test_bytes_of_a_token(teacher, vocab, dtype, expected):
    sizes = {"hidden": 4096, "rows": vocab, "dtype": dtype}
    assert bytes_per_token(teacher, "train", **sizes) == expected
    assert bytes_per_token(teacher, "eval", **sizes) == (16384 if dtype == "float32" else 8192)


@pytest.mark.parametrize(("hidden", "vocab"), [(576, 49152), (4096, 128256)])
def test_the_page_names_the_bytes_of_a_token(hidden, vocab):
    row = next(line for line in page("train.md") if f"{vocab:,}" in line and line.startswith("|"))
    sizes = [bytes_per_token(one, "train", hidden=hidden, rows=vocab, dtype="bfloat16") for one in CACHES.values()]
    assert row.endswith(f"| {sizes[0]:,} | {sizes[1]:,} | {sizes[2]:,} |")

"""Recipe section `distill.teacher`: what is filled in, what is refused by exact message, and what a token takes."""

from pathlib import Path

import pytest

from distill.recipe.recipe import load_recipe, save_recipe
from distill.recipe.sections import TeacherConfig, bytes_per_token
from tests.distill.recipe_files import BASE

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


@pytest.mark.parametrize(("hidden", "vocab"), [(576, 49152), (4096, 32000), (4096, 128256), (3584, 152064)])
def test_the_page_names_the_bytes_of_a_token(hidden, vocab):
    page = (Path(__file__).parents[3] / "docs" / "train.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if f"{vocab:,}" in line and line.startswith("|"))
    sizes = [bytes_per_token(one, "train", hidden=hidden, rows=vocab, dtype="bfloat16") for one in CACHES.values()]
    assert row.endswith(f"| {sizes[0]:,} | {sizes[1]:,} | {sizes[2]:,} |")

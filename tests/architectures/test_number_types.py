"""`auto` number types: bfloat16 where the machine computes in it, else float32."""

from pathlib import Path

import pytest

from architectures import number_types
from architectures.number_types import has_bfloat16
from distill.check import slow_rows
from distill.recipe import Recipe

WITHOUT = "processor\t: 0\nmodel name\t: a Xeon with avx512_bf16 in its name only\nflags\t\t: fpu avx512f avx512_vnni\n"


@pytest.mark.parametrize(
    ("cpuinfo", "devices", "expected"),
    [
        (WITHOUT, [], False),
        (WITHOUT + "flags\t\t: avx512f avx512_bf16\n", [], True),
        ("flags\t\t: amx_tile amx_bf16\n", [], True),
        ("Features\t: fp asimd bf16 i8mm\n", [], True),
        ("Features\t: fp asimd ebf16x\n", [], False),
        (None, [], False),
        (WITHOUT, ["nvidia0"], True),
        (WITHOUT, ["nvidiactl"], False),
        (None, ["kfd"], True),
    ],
)
def test_bfloat16_needs_a_gpu_or_instructions(
    tmp_path: Path, cpuinfo: str | None, devices: list[str], expected: bool
) -> None:
    has_bfloat16.cache_clear()
    (tmp_path / "dev").mkdir()
    for name in devices:
        (tmp_path / "dev" / name).touch()
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo, encoding="utf-8")
    assert has_bfloat16(tmp_path / "dev", tmp_path / "cpuinfo") is expected


@pytest.mark.parametrize(("native", "dtype", "precision"), [(True, "bfloat16", "amp_bf16"), (False, "float32", "fp32")])
def test_auto_is_what_the_machine_computes_in(
    monkeypatch: pytest.MonkeyPatch, native: bool, dtype: str, precision: str
) -> None:
    monkeypatch.setattr(number_types, "has_bfloat16", lambda: native)
    recipe = recipe_with("auto", "auto")
    assert (recipe.target.dtype, recipe.eval.dtype, recipe.distill.precision) == (dtype, dtype, precision)


@pytest.mark.parametrize("native", [True, False])
def test_a_named_type_stays(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(number_types, "has_bfloat16", lambda: native)
    recipe = recipe_with("float16", "amp_bf16")
    assert (recipe.target.dtype, recipe.eval.dtype, recipe.distill.precision) == ("float16", "float16", "amp_bf16")


def test_check_names_what_is_slow_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distill.check.has_bfloat16", lambda: False)
    [(_, text)] = slow_rows(recipe_with("bfloat16", "fp32"))
    assert "target.dtype=bfloat16, eval.dtype=bfloat16:" in text
    assert slow_rows(recipe_with("float32", "fp32")) == []
    monkeypatch.setattr("distill.check.has_bfloat16", lambda: True)
    assert slow_rows(recipe_with("bfloat16", "amp_bf16")) == []


def recipe_with(dtype: str, precision: str) -> Recipe:
    """A recipe with these number types."""
    return Recipe.model_validate(
        {
            "run_name": "types",
            "target": {"path": "target", "dtype": dtype},
            "architecture": {"layers": 2},
            "data": {"prompts": [{"path": "prompts.jsonl"}]},
            "distill": {"precision": precision},
            "eval": {"dtype": dtype},
        }
    )

"""`auto` number types: bfloat16 where the machine is fast in it, else float32."""

import pytest

from architectures import settings
from architectures.settings import has_bfloat16, many_rows_gain
from distill.recipe.recipe import Recipe

WITHOUT = "processor\t: 0\nmodel name\t: a Xeon with avx512_bf16 in its name only\nflags\t\t: fpu avx512f avx512_vnni\n"


INTEL = "vendor_id\t: GenuineIntel\n"


@pytest.mark.parametrize(
    ("cpuinfo", "devices", "few", "many"),
    [
        (WITHOUT, [], False, False),
        (WITHOUT + "flags\t\t: avx512f avx512_bf16\n", [], True, True),
        (INTEL + "flags\t\t: avx512f avx512_bf16\n", [], True, False),
        (INTEL + "flags\t\t: avx512f avx512_bf16 amx_bf16\n", [], True, True),
        (INTEL + "flags\t\t: avx512f avx512_bf16\n", ["nvidia0"], True, True),
        ("Features\t: fp asimd bf16 i8mm\n", [], True, True),
        ("Features\t: fp asimd ebf16x\n", [], False, False),
        (None, [], False, False),
        (WITHOUT, ["nvidiactl"], False, False),
        (None, ["kfd"], True, True),
    ],
)
def test_bfloat16_needs_a_gpu_or_instructions_and_many_rows_more_than_one_of_intels(
    tmp_path, cpuinfo, devices, few, many
):
    (tmp_path / "dev").mkdir()
    for name in devices:
        (tmp_path / "dev" / name).touch()
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo, encoding="utf-8")
    assert has_bfloat16(tmp_path / "dev", tmp_path / "cpuinfo") is few
    assert many_rows_gain(tmp_path / "dev", tmp_path / "cpuinfo") is many


@pytest.mark.parametrize(
    ("few", "many", "target", "scoring", "precision"),
    [
        (True, True, "bfloat16", "bfloat16", "amp_bf16"),
        (True, False, "float32", "bfloat16", "fp32"),
        (False, False, "float32", "float32", "fp32"),
    ],
)
def test_auto_is_what_the_machine_is_fast_in(monkeypatch, few, many, target, scoring, precision):
    monkeypatch.setattr(settings, "has_bfloat16", lambda: few)
    monkeypatch.setattr(settings, "many_rows_gain", lambda: many)
    recipe = recipe_with("auto", "auto")
    assert (recipe.target.dtype, recipe.eval.dtype, recipe.distill.precision) == (target, scoring, precision)
    assert recipe_with("float16", "amp_bf16").target.dtype == "float16"


def recipe_with(dtype: str, precision: str) -> Recipe:
    """A recipe with these number types."""
    return Recipe(
        run_name="types",
        target={"path": "target", "dtype": dtype},
        architecture={"layers": 2},
        data={"prompts": [{"path": "prompts.jsonl"}]},
        distill={"precision": precision},
        eval={"dtype": dtype},
    )

"""docs/gpu.md shows what the files of devices hold, and says where there is none."""

import pytest

from benchmarks.gpu.page import AWAITED, BEGIN, DOC, END, NOT_RUN, devices_text, read_devices, with_devices
from benchmarks.gpu.record import DEVICES
from benchmarks.gpu.stages import STAGES

STEP = {"shape": "wide-796m", "layers": 5, "how": "captured", "batch": 1, "context": 1024, "tokens": 1, "dtype": "x"}


def record(name: str, rows: list[dict], **stage) -> dict:
    whole = {"status": "done", "reason": None, "seconds": 12.3, "limit_s": 20, "rows": rows} | stage
    return {
        "device": AWAITED[0],
        "slug": "one",
        "size": "full",
        "measured": "2026-11-23",
        "torch": "2.11.0",
        "git_commit": "0123456789",
        "stages": {name: whole},
    }


def test_the_page_is_what_the_files_say():
    text = DOC.read_text(encoding="utf-8")
    assert with_devices(text, read_devices(DEVICES)) == text


def test_without_files_nothing_has_been_run():
    lines = devices_text([]).splitlines()
    assert len(lines) == 2 + len(STAGES)
    assert all(line.count(NOT_RUN) == len(AWAITED) for line in lines[2:])


def test_a_page_is_made_anew_without_losing_what_stands_around():
    once = with_devices(f"before\n{BEGIN}\nold\n{END}\nafter\n", [])
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "old" not in once
    assert with_devices(once, []) == once


def test_a_stage_says_how_it_ended():
    text = devices_text([record("loss", [], status="skipped", reason="no Liger here")])
    [line] = [line for line in text.splitlines() if line.startswith("| loss")]
    assert "skipped, 0 rows in 12 s: no Liger here" in line
    assert line.count(NOT_RUN) == len(AWAITED) - 1


def test_steps_stand_beside_their_floor():
    rows = [
        STEP | {"median_ms": 2.0, "floor_ms": 1.0},
        STEP | {"median_ms": 4.0, "floor_ms": 3.0, "batch": 8},
        STEP | {"median_ms": 5.0, "floor_ms": 1.0, "tokens": 5},
        STEP | {"median_ms": 9.0, "floor_ms": 1.0, "context": 4096},
        {"aim": "a captured step at 80 % of its floor", "reached": 0.5},
        STEP | {"context": 128, "skipped": "too large"},
    ]
    lines = devices_text([record("steps", rows)]).splitlines()
    assert "| wide-796m | captured | 2.00 (50%) | 4.00 (75%) |" in lines
    assert "| wide-796m | captured | 2.00 (50%) | 5.00 (20%) |" in lines
    assert "- aim: a captured step at 80 % of its floor; reached: 0.5" in lines
    assert any(line.startswith("- skipped: shape wide-796m") and line.endswith(": too large") for line in lines)
    assert not any("9.00" in line for line in lines)


def test_break_even_stands_by_lookahead():
    row = {"target": "t", "shape": "s", "how": "eager", "batch": 1, "context": 1024}
    rows = [row | {"lookahead": 1, "alpha": 0.25}, row | {"lookahead": 4, "alpha": None}]
    lines = devices_text([record("break_even", rows)]).splitlines()
    assert "| shape | how | batch | lookahead 1 | lookahead 4 |" in lines
    assert "| s | eager | 1 | 0.25 |  |" in lines


def test_a_reason_is_said_once():
    rows = [{"batch": size, "skipped": "too large"} for size in (8, 32)] + [{"batch": 1, "failed": "X"}]
    lines = devices_text([record("answers", rows)]).splitlines()
    assert "- skipped: batch 8 and 1 more: too large" in lines
    assert "- failed: batch 1: X" in lines


@pytest.mark.parametrize(
    ("value", "cell"), [(0.45678, "0.457"), (12345.6, "12,346"), (True, "True"), (128256, "128,256"), ("a|b", "a\\|b")]
)
def test_cells_are_short(value, cell):
    text = devices_text([record("loss", [{"loss": "kl", "value": value, "nested": {"a": 1}}])])
    assert f"| kl | {cell} |" in text
    assert "nested" not in text

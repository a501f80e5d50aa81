"""Our decoder beside transformers' at size tiny: the same prompts, as many tokens, and what is left out says why."""

import time
from dataclasses import replace

import pytest
import torch

from architectures.shapes.shape import Shape
from benchmarks.gpu import answers
from benchmarks.gpu.answers import SIZES, TARGET, Cell, Sizes, Taken, lengths_of, measured, random_prompts, rows
from benchmarks.gpu.models import random_model
from benchmarks.gpu.stage import Setting
from eval.latency.floor import shape_of, step_bytes
from eval.models.loading import load_model

SHAPE = Shape(layers=2, hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocab=264)


@pytest.fixture
def setting(tiny_target, tmp_path):
    return Setting(
        torch.device("cpu"), "tiny", tiny_target, tmp_path / "none.jsonl", tmp_path, tmp_path, time.monotonic() + 60
    )


def test_every_cell_has_a_row_of_each_way(setting):
    found = list(rows(setting))
    assert [(row["model"], row["batch"], row["how"]) for row in found] == [
        (cell.model, cell.batch, how) for cell in SIZES["tiny"].cells for how in ("ours", "transformers")
    ]


def test_rates_are_of_all_rows_and_the_whole_time(setting):
    for row in rows(setting):
        assert row["tokens_per_s"] == pytest.approx(row["batch"] * row["new_tokens"] / row["seconds"])
        assert row["answers_per_s"] == pytest.approx(row["batch"] / row["seconds"])
        assert min(row["seconds_each"]) <= row["seconds"] <= max(row["seconds_each"])
        assert row["how"] != "ours" or 0 < row["step_ms"] * row["new_tokens"] < 1000 * row["seconds"]
        assert row["floor_share"] == pytest.approx(row["floor_ms"] / row["step_ms"])


def test_both_ways_write_the_same_and_as_many(tiny_target):
    model = load_model(tiny_target, dtype="float32", device="cpu")
    stop = model.generation_config
    assert stop is not None
    stop.eos_token_id = list(range(264))  # any token would end a text
    found = measured(Cell(TARGET, 3, 24, 6, 1), model, repeats=1)
    [ours], [theirs] = found["ours"], found["transformers"]
    assert [list(row) for row in ours.token_ids] == theirs.token_ids
    assert [len(row) for row in theirs.token_ids] == [6, 6, 6]


def test_prompts_are_of_several_lengths_and_the_floor_is_of_their_mean(tiny_target):
    cell = Cell(TARGET, 4, 16, 6, 1)
    assert lengths_of(cell) == [15, 15, 16, 16]
    assert lengths_of(Cell(TARGET, 48, 512, 64, 1))[::47] == [450, 512]
    model = load_model(tiny_target, dtype="float32", device="cpu")
    assert [len(prompt) for prompt in random_prompts(cell, model)] == lengths_of(cell)
    row = answers.figures(cell, model, [Taken([], 2.0, 0.01)], bytes_per_s=1e9)
    assert row["floor_ms"] == pytest.approx(1000 * step_bytes(model, batch=4, context=15 + 3) / 1e9)
    assert row["floor_share"] == pytest.approx(row["floor_ms"] / 10)


def test_what_time_does_not_allow_is_left_out_and_the_rest_is_measured(setting, monkeypatch):
    cells = (Cell(TARGET, 2, 12, 4, 1e9), Cell(TARGET, 1, 12, 4, 1))
    monkeypatch.setitem(SIZES, "tiny", Sizes(cells, repeats=1))
    first, *others = rows(setting)
    assert "s are left" in first["skipped"]
    assert [row["how"] for row in others] == ["ours", "transformers"]


def test_what_memory_does_not_allow_is_left_out(setting, monkeypatch):
    cells = (Cell("llama-7b", 48, 512, 64, 1), Cell(TARGET, 2, 12, 4, 1), Cell(TARGET, 10**5, 12, 4, 1))
    monkeypatch.setitem(SIZES, "tiny", Sizes(cells, repeats=1))
    monkeypatch.setattr("benchmarks.gpu.stage.free_bytes", lambda _: 2**30)
    found = list(rows(setting))
    assert [row["model"] for row in found if "skipped" in row] == ["llama-7b", TARGET]
    assert all("1.0 GiB free" in row["skipped"] for row in found if "skipped" in row)
    assert len(found) == 4


def test_a_target_that_is_not_there_is_skipped_and_one_failure_is_of_one_cell(setting, tmp_path, monkeypatch):
    found = list(rows(replace(setting, target=tmp_path / "nowhere")))
    assert all("no target there" in row["skipped"] for row in found)
    true_figures = answers.figures
    monkeypatch.setattr(answers, "figures", lambda cell, *rest: true_figures(cell, *rest) if cell.batch == 1 else 1 / 0)
    failed, *others = rows(setting)
    assert failed["failed"] == "ZeroDivisionError: division by zero"
    assert [row["batch"] for row in others] == [1, 1]


def test_a_random_model_has_its_shape_and_number_type():
    model = random_model(SHAPE, torch.device("cpu"), torch.bfloat16)
    assert shape_of(model) == SHAPE
    assert model.dtype == torch.bfloat16
    assert not model.training

"""Widths that are multiples: few of them, none beyond max_seq_len, and nothing else changes."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from distill.chunked_loss import ResponseLogits
from distill.data.batches import Example, balanced_layout, cheapest_layout, collate
from distill.response_batches import cut_padding, padding_multiple
from distill.train import train
from tests.architectures.conftest import FAMILY_SETTINGS, perturb
from tests.distill.data.test_packing import LENGTHS, batch_of, build, loss_and_gradient, rows_computed


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])  # full attention, a window, both
def test_padding_changes_neither_loss_nor_gradients(make_checkpoint, family, packing):
    settings = {**FAMILY_SETTINGS[family], "num_hidden_layers": 2}
    folders = [perturb(make_checkpoint(seed=seed, model_type=family, **settings)) for seed in (1, 2)]
    batch = batch_of()
    in_float64 = partial(build, *folders, dtype="float64")  # what differs is no rounding
    loss, gradient = loss_and_gradient(in_float64(packing=False), batch, 3)
    model, found = in_float64(packing=packing, multiple=8), []
    fit = partial(cut_padding, multiple=8)
    shapes = rows_computed(model.student.lm, lambda: found.extend(loss_and_gradient(model, batch, 3, fit)))
    assert {width % 8 for _, width in shapes} == {0}
    assert found[0] == pytest.approx(loss, rel=1e-6)
    assert (found[1] - gradient).norm() < 1e-6 * gradient.norm()


def test_a_micro_batch_is_cut_and_padded_to_a_multiple_and_never_beyond_the_longest():
    batch = batch_of() | {"teacher_hidden": torch.ones(len(LENGTHS), 20, 4)}
    widths = {fit: cut_padding(batch, multiple=fit, longest=31)["input_ids"].shape[1] for fit in (1, 8, 16, 64)}
    assert widths == {1: 30, 8: 31, 16: 31, 64: 31}
    narrow = cut_padding({name: each[2:4] for name, each in batch.items()}, multiple=16, longest=31)
    assert narrow["input_ids"].shape == (2, 16)
    assert narrow["teacher_hidden"].shape == (2, 16, 4)  # of responses no longer than their sequences
    wide = cut_padding(batch, multiple=64)
    assert [wide[name].shape[1] for name in ("input_ids", "attention_mask", "keep", "next_ids")] == [64] * 4
    assert (wide["teacher_hidden"].shape, wide["task"].shape) == ((7, 20, 4), (7, 1))
    for name in ("input_ids", "attention_mask", "keep", "next_ids"):
        assert torch.equal(wide[name][:, :30], batch[name])
        assert not wide[name][:, 30:].any()


def test_a_cut_response_keeps_its_rows_where_the_batch_is_padded():
    """A cache's rows are of the longest response in the batch, which no width of a multiple is shorter than."""
    batch = collate([Example((1, 2, 3), 4, ((0, 3),)), Example((1, 2), 4, ((0, 2),))])
    batch["teacher_hidden"] = torch.arange(6).view(2, 3)
    assert torch.equal(cut_padding(batch, multiple=8)["teacher_hidden"], batch["teacher_hidden"])


def test_packed_rows_are_as_wide_as_a_multiple_where_that_is_the_cheapest():
    assert [balanced_layout(LENGTHS, 4, multiple).width for multiple in (1, 8, 32)] == [30, 32, 32]
    layout = cheapest_layout([3, 3, 3, 24], 24, flops_per_token=lambda _: 1, multiple=8)
    assert layout is not None
    assert (layout.num_rows, layout.width) == (1, 40)
    assert cheapest_layout([3, 3, 24], 24, flops_per_token=lambda _: 1, multiple=64) is not None
    assert cheapest_layout([20, 24], 24, flops_per_token=lambda _: 1, multiple=64) is None  # 64 slots for 48


def test_only_a_gpu_pads(monkeypatch):
    assert padding_multiple() == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert padding_multiple() == 64


@pytest.mark.parametrize("packing", [False, True])
def test_a_recipe_trains_and_evaluates_on_few_widths(make_run, monkeypatch, packing):
    """And on nothing else: its losses are those without."""
    last_hidden, widths, losses = ResponseLogits.last_hidden, {1: set(), 8: set()}, {}
    for multiple, met in widths.items():

        def seen(self, ids_BT, position_ids_BT, *, met=met):
            met.add(ids_BT.shape[1])
            return last_hidden(self, ids_BT, position_ids_BT)

        monkeypatch.setattr(ResponseLogits, "last_hidden", seen)
        for module in ("response_batches", "trainer"):
            monkeypatch.setattr(f"distill.{module}.padding_multiple", lambda multiple=multiple: multiple)
        recipe = make_run(f"by{multiple}", max_duration="3ba", packing=packing)
        train(recipe)
        losses[multiple] = logged_losses(recipe)
    assert {width for width in widths[8] if width % 8} <= {recipe.data.max_seq_len}
    assert len(widths[8]) < len(widths[1])
    assert len(losses[1]) >= 3
    assert losses[8] == pytest.approx(losses[1], rel=1e-5)


def logged_losses(recipe):
    rows = (Path(recipe.run_dir) / "logs" / "metrics.jsonl").read_text().splitlines()
    return [value for row in map(json.loads, rows) for name, value in row.items() if name.startswith("loss")]

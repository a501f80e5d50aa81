"""Steps by size tiny: every cell has rows or a reason, floors are bytes over bandwidth, failures stay alone."""

import json
import time
from dataclasses import replace

import pytest
import torch

from benchmarks.gpu import machine, steps
from benchmarks.gpu.stage import Setting
from benchmarks.gpu.step_sizes import AIM_CELL, SIZES, Cell
from eval.decoding import cuda_graphs as captured
from eval.models import load_model
from tests.eval.decoding.stand_ins import watched_maker

TINY = SIZES["tiny"]


@pytest.fixture
def setting(tiny_target, tmp_path):
    return Setting(torch.device("cpu"), "tiny", tiny_target, tmp_path, tmp_path, tmp_path, time.monotonic() + 600)


@pytest.fixture
def sized(monkeypatch):
    """Change what size tiny times."""
    return lambda **changes: monkeypatch.setitem(SIZES, "tiny", replace(TINY, **changes))


def times_of(rows):
    return [row for row in rows if "median_ms" in row]


def test_every_cell_has_its_steps_and_what_cannot_be_captured_its_reason(setting):
    rows = list(steps.rows(setting))
    assert json.loads(json.dumps(rows)) == rows
    target = [("target", tokens) for tokens in (1, 2, 3)]
    drafts = [(name, tokens) for name in ("2 layers", "1 layer") for tokens in (1, 2)]
    found = [(row["how"], row["batch"], row["context"], row["shape"], row["tokens"]) for row in times_of(rows)]
    assert found == [("eager", *place, *one) for place in ((1, 8), (3, 20)) for one in (*target, *drafts)]
    left_out = [row for row in rows if "skipped" in row]
    assert [(row["how"], row["shape"]) for row in left_out] == [
        ("captured", name) for name in ("target", "2 layers", "1 layer")
    ]
    assert all(row["skipped"].startswith("--capture ") for row in left_out)
    assert not [row for row in rows if "failed" in row]
    for row in times_of(rows):
        low, high = row["interval_ms"]
        assert 0 < low <= row["median_ms"] <= high


def test_the_floor_is_the_bytes_over_the_bandwidth(setting, monkeypatch):
    monkeypatch.setattr(machine, "memory_bandwidth", lambda device, num_bytes: {"copy": 1e6, "read": 2e6})
    rows = times_of(steps.rows(setting))
    [last] = [row for row in rows if (row["shape"], row["batch"], row["tokens"]) == ("target", 3, 3)]
    model = load_model(setting.target, dtype=last["dtype"], device="cpu")
    assert last["floor_ms"] == pytest.approx(1000 * steps.step_bytes(model, batch=3, context=20) / 2e6)
    assert (last["layers"], last["hidden"], last["parameters"]) == (4, 64, model.num_parameters())
    assert {row["layers"] for row in rows} == {4, 2, 1}


def test_captured_steps_by_a_stand_in_come_with_pairs_and_the_aim(setting, sized, monkeypatch):
    maker = watched_maker("captured")
    monkeypatch.setattr(captured, "CapturedSteps", maker.opener)
    monkeypatch.setattr(steps, "AIM_SHAPE", "1 layer")
    sized(cells=(AIM_CELL,), pairs=(("2 layers", "1 layer"),), equal_cell=AIM_CELL, verified={"captured": (1, 2, 4)})
    rows = list(steps.rows(setting))
    assert {(row["how"], row["shape"], row["tokens"]) for row in times_of(rows)} == {
        *(("captured", "target", tokens) for tokens in (1, 2, 4)),
        *(("captured", name, tokens) for name in ("2 layers", "1 layer") for tokens in (1, 2)),
    }
    assert {feed for _, *feed in maker.made for feed in [tuple(feed)]} == {
        (1, False), (2, False), (2, True), (4, True),
    }  # fmt: skip
    medians = {row["shape"]: row for row in times_of(rows) if row["tokens"] == 1}
    [aim] = [row for row in rows if "aim" in row]
    aimed = medians["1 layer"]
    assert aim == {
        "aim": "captured 5-layer step at 80 % of its floor",
        "reached": pytest.approx(aimed["floor_ms"] / aimed["median_ms"]),
    }
    [pair] = [row for row in rows if row.get("deep") == "2 layers"]
    assert pair["deep_over_wide"] == pytest.approx(medians["2 layers"]["median_ms"] / aimed["median_ms"])
    assert len([row for row in rows if "layer_ms" in row]) == 1


def test_the_caches_of_a_cell_are_given_back_before_the_next(setting, sized, monkeypatch):
    maker = watched_maker("captured")
    openers = []
    monkeypatch.setattr(captured, "CapturedSteps", lambda: openers.append(maker.opener()) or openers[-1])
    sized(cells=(Cell("captured", 1, 8), Cell("captured", 2, 8)))
    for row in steps.rows(setting):
        if "skipped" not in row and row.get("batch") == 2:
            assert not [key for key in openers[0].free if key[1] == 1]
    assert openers[0].free == {}


@pytest.mark.parametrize(
    ("error", "key"),
    [(RuntimeError("an illegal\nmemory access"), "failed"), (torch.cuda.OutOfMemoryError(), "skipped")],
)
def test_a_shape_that_fails_leaves_the_others(setting, monkeypatch, error, key):
    whole = steps.draft_steps

    def broken(name, model, place):
        if name == "2 layers" and place.batch == 1:
            raise error
        return whole(name, model, place)

    monkeypatch.setattr(steps, "draft_steps", broken)
    rows = list(steps.rows(setting))
    [lost] = [row for row in rows if key in row and row["how"] == "eager"]
    assert (lost["shape"], lost["batch"], lost["context"]) == ("2 layers", 1, 8)
    assert "\n" not in lost[key]
    assert {(row["shape"], row["batch"]) for row in times_of(rows)} == {
        ("target", 1), ("1 layer", 1), ("target", 3), ("2 layers", 3), ("1 layer", 3),
    }  # fmt: skip


def test_what_does_not_fit_into_time_or_memory_is_not_begun(setting, monkeypatch):
    late = replace(setting, deadline_s=time.monotonic())
    rows = list(steps.rows(late))
    assert not times_of(rows)
    assert "eager steps at batch 1 and 8 tokens takes about 1 s, and 0 s are left" in [
        row.get("skipped") for row in rows
    ]
    monkeypatch.setattr("benchmarks.gpu.stage.free_bytes", lambda device: 1000)
    rows = list(steps.rows(setting))
    assert not times_of(rows)
    assert all("GiB free" in row["skipped"] for row in rows if row["how"] == "eager")


@pytest.mark.parametrize("size", SIZES)
def test_sizes_name_shapes_that_there_are(size):
    from architectures.shapes import NAMED_SHAPES
    from benchmarks.gpu.step_models import layers_name

    sizes = SIZES[size]
    named = [sizes.target, *sizes.drafts]
    assert all(name == "target" or isinstance(name, int) or name in NAMED_SHAPES for name in named)
    known = {each if isinstance(each, str) else layers_name(each) for each in named}
    assert {shape for cell in sizes.cells for shape in cell.only} | {
        one for pair in sizes.pairs for one in pair
    } <= known
    assert sizes.equal_cell in sizes.cells
    assert {cell.how for cell in sizes.cells} <= sizes.cell_s.keys()
    assert {cell.how for cell in sizes.cells if not cell.only} <= sizes.verified.keys()


def test_a_step_reads_all_weights_but_embeddings_that_are_no_head(make_checkpoint):
    tied, untied = (
        load_model(make_checkpoint(seed=1, tie_word_embeddings=is_tied), dtype="float32", device="cpu")
        for is_tied in (True, False)
    )
    assert steps.weight_bytes_read(tied) == 4 * tied.num_parameters() == steps.weight_bytes_read(untied)
    shape = steps.shape_of(tied)
    of_cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4
    assert steps.step_bytes(tied, batch=3, context=11) == 4 * tied.num_parameters() + 3 * 11 * of_cache

"""Step times at other batches, and what the acceptance of a scorecard promises there."""

import json
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import widedraft
from architectures.errors import UserError
from eval.pages.drawing import Drawing
from eval.predictions.promise import any_full_rate
from eval.records.files import plain
from eval.report import page as page_module
from eval.report.batches import batch_words, promises, which_batches
from eval.report_inputs.cards import read_cards
from eval.report_inputs.drafts import scored_drafts
from eval.report_inputs.grid_file import read_grid

CAPTION = "Speed by batch and context, predicted: draft"


def step(model, tokens, median_ms, *, prefill=False):
    times = {name: {"value": median_ms, "interval": None} for name in ("p10_ms", "p50_ms", "p90_ms")}
    return {"model": model, "tokens": tokens, "prefill": prefill, **times}


def cell(batch, context, verify_ms, *, compiled=False):
    """A target of 10 ms, a draft of 1, one more for two tokens; all but the last number is the same everywhere."""
    steps = [step("target", 1, 10.0), step("target", 2, verify_ms), step("target", 4, verify_ms + 1.0)]
    steps += [step("draft", 1, 1.0), step("draft", 2, 2.0), step("draft", 1, 99.0, prefill=True)]
    return cell_of(steps, batch=batch, context_tokens=context, compiled=compiled)


def cell_of(steps, **where):
    timed = {"repeats": 2, "warm_up_repeats": 1, "settled": True, "steps": steps}
    return {**where, "together": timed, "alone": timed, "floor": {}}


@pytest.fixture
def drafts(runs):
    return scored_drafts(read_cards([runs / "deep"]))


@pytest.fixture
def write_grid(drafts, tmp_path):
    """Write a file of step times of the first run's target and draft."""
    card = drafts[0].card.record
    models = {"target": card.target, "draft": drafts[0].model}
    state = {"load_average": 0.1, "processor_mhz": None, "throttled_periods": None, "gpu": None}

    def write(cells, edit=lambda record: None):
        record = {
            "models": {
                name: {**{k: v for k, v in plain(model).items() if k != "draft"}, "device": "cpu"}
                for name, model in models.items()
            },
            "lookaheads": [1, 3],
            "bandwidth_gb_s": {"copy": 9.0, "read": 9.0},
            "cells": cells,
            "machine": {"before": state, "after": state, "threads": 1},
            "provenance": plain(card.provenance),
        }
        record = json.loads(json.dumps(record))  # cells may be one and the same
        edit(record)
        (tmp_path / "latency.json").write_text(json.dumps(record))
        return tmp_path / "latency.json"

    return write


@given(st.integers(0, 4), st.integers(4, 9), st.integers(1, 5))
def test_any_row_of_a_batch_makes_it_catch_up(full, rounds, batch):
    """Against all ways in which the rows of a batch may end a round."""
    rate = full / rounds
    chances = {True: rate, False: 1 - rate}
    expected = 0.0
    for rows in product([True, False], repeat=batch):
        chance = 1.0
        for row in rows:
            chance *= chances[row]
        expected += chance * any(rows)
    assert any_full_rate(SimpleNamespace(full_rate=rate), batch) == pytest.approx(expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_at_batch_1_and_with_its_own_times_it_is_the_scorecard_s_forecast(drafts, write_grid, temperature):
    draft, latency = drafts[0], drafts[0].card.record.latency
    own = {entry.lookahead: entry.median_ms for entry in latency.verify}
    steps = [
        step("target", 1, latency.target.median_ms),
        step("draft", 1, draft.steps.one_token.median_ms),
        step("draft", 2, draft.steps.two_tokens.median_ms),
        *(step("target", lookahead + 1, own[lookahead]) for lookahead in own),
    ]
    alone = cell_of(steps, batch=1, context_tokens=50, compiled=False)
    path = write_grid([alone], lambda record: record.update(lookaheads=sorted(own)))
    [promise] = promises(draft, temperature, read_grid(path, drafts).grid)
    forecast = draft.forecast(temperature)
    assert promise.lookahead == forecast.best_lookahead
    assert promise.speed == pytest.approx(forecast.predicted)


def test_the_table_has_every_cell(drafts, write_grid, page_with):
    cells = [
        cell(1, 50, 11.0),
        cell(4, 50, 20.0),
        cell(4, 50, 15.0, compiled=True),
        cell(4, 50, 15.0) | {"captured": True},
    ]
    page = page_with(write_grid(cells, other_machine))
    rows = page.cells(CAPTION)
    assert [(row["batch"], row["context"], row["steps"], row["temperature"]) for row in rows] == [
        (batch, "50", steps, temperature)
        for temperature in "01"
        for batch, steps in (("1", "eager"), ("4", "eager"), ("4", "compiled"), ("4", "captured"))
    ]
    entries = {entry.lookahead: entry for entry in drafts[0].row(0.0).lookahead}
    for row, batch, verify_ms in zip(rows, (1, 4, 4, 4), (11.0, 20.0, 15.0, 15.0), strict=False):
        speeds = {}
        for lookahead, checked_ms in ((1, verify_ms), (3, verify_ms + 1)):
            catch_up_ms = any_full_rate(entries[lookahead], batch) * (2.0 - 1.0)
            round_ms = lookahead * 1.0 + catch_up_ms + checked_ms
            speeds[lookahead] = entries[lookahead].tau.value * 10.0 / round_ms
        best = max(speeds, key=speeds.__getitem__)
        assert (row["lookahead"], row["predicted speed"]) == (str(best), f"{speeds[best]:.2f}x")
    shown = "".join(page.shown)
    assert "taken on a CPU (Abacus 9, 2 threads) in float32. 1x is the target alone at the same batch." in shown
    assert "Speed by batch of undistilled: " in shown


def other_machine(record):
    record["machine"]["threads"] = 2
    record["provenance"]["hardware"].update(processor="Abacus 9", accelerators=[])


def gpu(record):
    record["models"]["target"].update(device="cuda:0", dtype="bfloat16")
    record["provenance"]["hardware"].update(processor="Abacus 9", accelerators=["Loom 7"])


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (other_machine, " on a CPU (Abacus 9, 2 threads) in float32"),
        (gpu, " on a GPU (Loom 7) in bfloat16"),
        (lambda _: None, ""),
    ],
)
def test_the_verdict_names_the_machine_of_the_times_if_it_is_another(drafts, write_grid, edit, place):
    grid = read_grid(write_grid([cell(1, 50, 0.1)], edit), drafts).grid
    told = f"; at 50 tokens of context{place} predicted to pay at every batch timed (1)"
    assert batch_words(drafts[0], 0.0, grid) == told


@pytest.mark.parametrize(
    ("pays", "told"),
    [
        ({1: True, 4: True}, "at every batch timed (1, 4)"),
        ({4: False, 1: False}, "at no batch timed (1, 4)"),
        ({8: False, 1: True, 4: True, 16: False}, "up to batch 4, not from batch 8 on"),
        ({1: True, 4: False, 8: True}, "at batch 1, 8 alone, of 1, 4, 8 timed"),
        ({1: False, 4: True}, "at batch 4 alone, of 1, 4 timed"),
    ],
)
def test_batches_that_pay_in_words(pays, told):
    assert which_batches(pays) == told


def test_the_verdict_ends_with_the_batches_that_pay(drafts, write_grid, page_with):
    """By eager steps, at the context nearest to that of the scorecard, whatever others say."""
    near = drafts[0].card.record.latency.context_tokens + 3
    others = [cell(batch, near + 900, 1.0) for batch in (1, 4, 16)] + [cell(4, near, 0.1, compiled=True)]
    cells = [cell(16, near, 900.0), cell(1, near, 0.1), cell(4, near, 800.0), *others]
    words = page_with(write_grid(cells)).words["how"][0].split("\n")[1]
    assert words.endswith(
        f"1 thread); at {near} tokens of context predicted to pay up to batch 1, not from batch 4 on."
    )
    only_compiled = read_grid(write_grid([cell(4, near, 0.1, compiled=True)]), drafts).grid
    assert batch_words(drafts[0], 0.0, only_compiled) == ""
    assert batch_words(drafts[1], 0.0, read_grid(write_grid(cells), drafts).grid) == ""


@pytest.fixture
def page_with(runs, read_back, tmp_path, monkeypatch):
    """The page about the first run with a file of step times, written by the command."""
    monkeypatch.setattr(page_module, "render", lambda _: Drawing("0 0 1 1", "", b""))  # plots take seconds

    def read(path):
        out = tmp_path / "page.html"
        assert widedraft.main(["report", str(runs / "deep"), "--latency", str(path), "--out", str(out)]) == 0
        return read_back(out)

    return read


def test_what_the_command_wrote_is_read(target_folder, noisy_folder, page_with, tmp_path):
    out = tmp_path / "real.json"
    words = [
        "--batch-sizes",
        "1",
        "2",
        "--contexts",
        "8",
        "--lookaheads",
        "1",
        "3",
        "--repeats",
        "6",
        "--num-threads",
        "1",
    ]
    models = ["--target", str(target_folder), "--drafts", str(noisy_folder), "--dtype", "float32"]
    assert widedraft.main(["latency", *models, *words, "--out", str(out)]) == 0
    page = page_with(out)
    assert [(row["batch"], row["context"]) for row in page.cells(CAPTION)] == [("1", "8"), ("2", "8")] * 2
    assert "; at 8 tokens of context predicted to pay " in page.words["how"][0]


def other_target(record):
    record["models"]["target"]["fingerprint"] = "f" * 64


def no_draft(record):
    record["models"]["draft"]["fingerprint"] = "f" * 64


def other_lookahead(record):
    record["lookaheads"] = [9]
    for one in record["cells"]:
        one["together"]["steps"].append(step("target", 10, 1.0))


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            lambda record: record.pop("cells"),
            "cells: Field required. Name a file that `widedraft latency --out` wrote.",
        ),
        (lambda record: record["cells"].clear(), "cells: Tuple should have at least 1 item"),
        (
            lambda record: record["cells"][0].update(batch=0),
            "cells.0.batch: Input should be greater than or equal to 1",
        ),
        (
            lambda record: record["cells"][0]["together"]["steps"][0]["p50_ms"].update(value=0),
            "cells.0.together.steps.0: Value error, must be above 0 and between p10_ms and p90_ms, got p50_ms 0",
        ),
        (lambda record: record["cells"][0]["together"]["steps"].pop(2), "cells.0 has no step of target with 4 tokens"),
        (lambda record: record["cells"][0]["together"]["steps"].pop(4), "cells.0 has no step of draft with 2 tokens"),
        (other_target, "holds no times of the target "),
        (lambda record: record["models"].pop("target"), "holds no times of the target "),
        (no_draft, "holds no times of any draft of the report ("),
        (other_lookahead, "timed at lookaheads [9], and none of them was scored ([1, 2, 3])"),
    ],
)
def test_times_that_do_not_fit_are_refused(drafts, write_grid, edit, told):
    path = write_grid([cell(1, 50, 11.0)], edit)
    with pytest.raises(UserError) as refused:
        read_grid(path, drafts)
    assert str(refused.value).startswith(f"{path}: ")
    assert told in str(refused.value)


def test_a_file_that_is_no_json_is_refused(drafts, tmp_path):
    (tmp_path / "latency.json").write_text("{")
    with pytest.raises(UserError, match=r"latency\.json: is not valid JSON"):
        read_grid(tmp_path / "latency.json", drafts)

"""The numbers of the page are the scorecard's: each table's cells are read back and compared with it."""

import json
import re
from pathlib import Path

import pytest

from eval.acceptance.speedup import iid_tau
from eval.pages.verdict import alpha_words, prediction, with_interval
from eval.records.files import read_scorecard, scorecard_from
from eval.report.positions import count_words


@pytest.fixture
def record(rewrite):
    """A scorecard whose speeds, which this machine decides, are numbers that differ."""

    def edit(record):
        record["live"]["speedup"] = {"value": 1.25, "interval": [1.125, 1.25]}
        record["live"]["decoding_speedup"] = {"value": 2.5, "interval": [2.25, 2.75]}
        record["live"]["lookahead"] = 2
        for row in record["speedup"]:
            row["best_lookahead"] = 3

    return scorecard_from(rewrite("deep", edit), Path())


@pytest.fixture
def page(record, page_of, runs):
    (runs / "deep" / "eval" / "rounds.jsonl").unlink()
    return page_of("deep")


def rows_of(record, draft, temperature, section="acceptance"):
    rows = getattr(record, section)
    [row] = [one for one in rows if (one.draft, one.temperature) == (draft, temperature)]
    return row


def test_every_draft_stands_in_a_line_for_each_temperature(page, record):
    found = [row for twin in ("", ", undistilled") for row in page.cells(f"Acceptance and predicted speed{twin}")]
    assert [(row["draft"], row["temperature"]) for row in found] == [
        (draft, temperature) for draft in ("draft", "undistilled") for temperature in "01"
    ]
    for row in found:
        ours = rows_of(record, row["draft"], float(row["temperature"]))
        forecast = rows_of(record, row["draft"], float(row["temperature"]), "speedup")
        assert row["α"] == with_interval(ours.alpha)
        assert (row["τ"], row["at lookahead"]) == (with_interval(ours.lookahead[2].tau), "3")
        assert row["predicted speed"] == prediction(record, forecast)
        assert re.fullmatch(rf"{forecast.predicted:.2f}x \[\d\.\d\d, \d\.\d\d\]", row["predicted speed"])
        [model] = [one for one in record.drafts if one.draft == row["draft"]]
        assert row["layers × hidden"] == f"{model.layers} × {model.hidden}"


def test_positions_have_their_rates_and_counts(page, record):
    for temperature in (0.0, 1.0):
        entry = rows_of(record, "draft", temperature).lookahead[-1]
        found = page.tables[f"Rounds that keep each position, temperature {temperature:g}: draft"][1:]
        assert found == [
            [
                str(place),
                with_interval(position.joint),
                count_words(position.accepted, entry.rounds),
                with_interval(position.conditional),
                count_words(position.accepted, position.reached),
            ]
            for place, position in enumerate(entry.positions, start=1)
        ]


def test_counts_are_whole_where_they_are():
    assert count_words(3.0, 10.0) == "3 of 10"
    assert count_words(2.25, 10.06) == "2.2 of 10.1"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lookaheads_have_what_was_measured_beside_what_was_predicted(page, record, temperature):
    row, forecast = rows_of(record, "draft", temperature), rows_of(record, "draft", temperature, "speedup")
    found = page.cells(f"By lookahead, temperature {temperature:g}: draft")
    [live] = [live for live in record.lives if live.temperature == temperature]
    speed = with_interval(live.speedup, times=True)
    for cells, entry, predicted in zip(found, row.lookahead, forecast.lookahead, strict=True):
        assert cells == {
            "lookahead": str(entry.lookahead),
            "τ": with_interval(entry.tau),
            "τ, independent": f"{iid_tau(row.alpha.value, entry.lookahead):.3f}",
            "measured, the draft alone": speed if entry.lookahead == live.lookahead else "–",
            "predicted": f"{predicted.predicted:.2f}x",
            "independent": f"{predicted.iid:.2f}x",
            "Leviathan's formula": f"{predicted.leviathan:.2f}x",
            "memory-bound": f"{predicted.memory_bound:.2f}x",
            "break-even α": alpha_words(predicted.break_even_alpha),
        }


def test_a_round_s_parts_are_of_the_steps_and_of_live_decoding(page, record):
    predicted, measured = page.tables["Milliseconds of a round"][1:]
    [steps] = [one for one in record.latency.drafts if one.draft == "draft"]
    one_ms, two_ms = steps.one_token.median_ms, steps.two_tokens.median_ms
    entry = rows_of(record, "draft", 0.0).lookahead[1]
    verify_ms = record.latency.verify[1].median_ms
    parts_ms = [2 * one_ms, entry.fully_accepted / entry.rounds * (two_ms - one_ms), verify_ms]
    whole_ms = sum(parts_ms)
    told = [f"{ms:.2f} ({ms / whole_ms:.0%})" for ms in parts_ms]
    assert predicted == ["draft, predicted", *told, "not told", f"{whole_ms:.2f}"]
    spent, rounds = record.live.speculative, record.live.agreement.loop.rounds
    whole_ms, draft_ms, verify_ms = (1000 * part / rounds for part in (spent.decode_s, spent.draft_s, spent.verify_s))
    parts_ms = [draft_ms, verify_ms, whole_ms - draft_ms - verify_ms]
    told = [f"{ms:.2f} ({ms / whole_ms:.0%})" for ms in parts_ms]
    assert measured == ["draft, measured", told[0], "not told", *told[1:], f"{whole_ms:.2f}"]


def test_steps_stand_with_their_percentiles(page, record):
    latency = record.latency
    caption = f"Step times of deep in milliseconds: batch 1, {latency.context_tokens} tokens of context, 3 repetitions"
    found = {row["step"]: row for row in page.cells(caption)}
    ours = {
        "target, 1 token": latency.target,
        "draft, 1 token": latency.of("draft").one_token,
        "draft, 2 tokens": latency.of("draft").two_tokens,
        **{f"target verifies {one.lookahead + 1} tokens": one for one in latency.verify},
    }
    assert found.keys() == ours.keys()
    for name, step in ours.items():
        low, high = step.p50_ms.interval
        assert found[name]["median"] == f"{step.median_ms:.2f} [{low:.2f}, {high:.2f}]"
        assert (found[name]["10 %"], found[name]["90 %"]) == (f"{step.p10_ms.value:.2f}", f"{step.p90_ms.value:.2f}")
        assert found[name]["of a target step"] == f"{step.median_ms / latency.target.median_ms:.3f}"


def test_categories_are_the_scorecard_s_bins(page, record):
    found = page.cells("By category, rounds that start in it: draft")
    bins = [
        (f"{temperature:g}", one)
        for temperature in (0.0, 1.0)
        for part in rows_of(record, "draft", temperature).bins
        if part.by == "category"
        for one in part.bins
    ]
    assert len(found) == len(bins) == 6
    for cells, (temperature, one) in zip(found, bins, strict=True):
        assert (cells["category"], cells["temperature"]) == (one.bin, temperature)
        assert (cells["prompts"], cells["tokens"]) == (str(one.prompts), f"{one.alpha.tokens:g}")
        assert cells["α"] == with_interval(one.alpha)
        assert (cells["τ"], cells["at lookahead"]) == (with_interval(one.lookahead[2].tau), "3")


def test_tasks_share_out_prompts_and_tokens(page, record):
    for temperature in (0.0, 1.0):
        rows = [row for row in page.cells("By task: draft") if row["temperature"] == f"{temperature:g}"]
        sums = rows_of(record, "draft", temperature).by_prompt
        assert [(row["task"], row["prompts"]) for row in rows] == [("p.jsonl", "2"), ("q.jsonl", "3")]
        for row, places in zip(rows, (slice(2), slice(2, 5)), strict=True):
            tokens = sum(sums.tokens[places])
            assert row["tokens"] == f"{tokens:g}"
            assert row["α"].split()[0] == f"{sum(sums.alpha[places]) / tokens:.3f}"
            assert row["τ"].split()[0] == f"{tokens / sum(sums.rounds[2].counts[places]):.3f}"


def test_differences_are_the_scorecard_s_own(page, record):
    found = page.cells("What distilling gained, on the same prompts and answers")
    for cells, row in zip(found, record.differences, strict=True):
        assert cells == {
            "difference": "draft − undistilled",
            "temperature": f"{row.temperature:g}",
            "α": with_interval(row.alpha),
            "τ": with_interval(row.lookahead[2].tau),
            "at lookahead": "3",
            "argmax agreement": with_interval(row.greedy_match),
            "p over prompts": f"{row.greedy_match.sign_flip_p:.2g}",
        }


def test_words_of_a_figure_hold_its_numbers(page, record):
    words = {label["aria-label"].partition(":")[0]: label["aria-label"] for label in page.all("svg")}
    entry = rows_of(record, "draft", 0.0).lookahead[-1]
    for position in entry.positions:
        told = f"{position.joint.value:.3f} at position {position.position}"
        assert told in words["Share of rounds that keep each position at temperature 0"]
    speeds = words["Speed by lookahead at temperature 0, 1 being the target alone"]
    assert "measured 1.25x [1.12, 1.25] at 2" in speeds
    [sampled] = record.live_at
    told = f"measured {with_interval(sampled.speedup, times=True)} at {sampled.lookahead}"
    assert told in words["Speed by lookahead at temperature 1, 1 being the target alone"]


def test_origins_are_told(page, record):
    models = page.cells("Models")
    assert [row["fingerprint"] for row in models] == [
        model.fingerprint[:12] for model in (record.target, *record.drafts)
    ]
    shown = "".join(page.shown)
    origin = record.provenance
    facts = (origin.git_commit or "unknown", origin.created, origin.hardware.processor, origin.python)
    for fact in facts:
        assert fact in shown
    assert "5 given, 5 taken, 0 too long, 5 scored" in shown
    assert json.dumps(record.settings.seed) in shown


def test_what_a_scorecard_lacks_is_named(runs, page_of, rewrite):
    def edit(record):
        record["live"] = None
        for row in record["acceptance"]:
            row["by_prompt"] = None
            row["bins"] = [part for part in row["bins"] if part["by"] != "category"]

    rewrite("shallow", edit)
    page = page_of("shallow")
    absent = " ".join("".join(page.shown).split())
    for told in (
        "Not measured: the draft is predicted to decode at",
        "Measured speed: temperature 0, at which decoding is measured, was not scored.",
        "Paired differences: only one draft was scored.",
        "Measured speed at temperature 0",
        "Live decoding: temperature 0 was not scored, so no round was timed.",
        "Latency against depth: every draft has 2 layers.",
        (
            "Other batches and contexts: no step times of them. Give eval.latency_batch_sizes, or name a file with "
            "--latency."
        ),
        "does not hold the sums of every prompt.",
        "By category: the prompts have one category, or none.",
        "Checkpoints of shallow: widedraft eval RECIPE --checkpoints scores them.",
        "Texts of draft: temperature 0 was not scored, so nothing was decoded live.",
    ):
        assert told in absent, told
    assert len(page.words["absent"]) == 11


def test_files_that_are_not_beside_a_scorecard_are_named(runs, page_of):
    for name in ("rounds.jsonl", "examples.json"):
        (runs / "deep" / "eval" / name).unlink()
    shown = "".join(page_of("deep").shown)
    assert "no rounds.jsonl beside" in shown
    assert "no examples.json beside" in shown


@pytest.fixture
def small(runs):
    return read_scorecard(runs / "small" / "eval" / "scorecard.json")


def test_a_small_head_has_its_coverage_beside_acceptance(page_of, small):
    page = page_of("small")
    for row in page.cells("Acceptance and predicted speed"):
        assert row["coverage"] == with_interval(rows_of(small, row["draft"], float(row["temperature"])).coverage)
    assert [row["ids it says"] for row in page.cells("Models")] == ["all", "227", "227"]
    ours = rows_of(small, "draft", 0.0)
    [categories] = [part.bins for part in ours.bins if part.by == "category"]
    found = [row for row in page.cells("By category, rounds that start in it: draft") if row["temperature"] == "0"]
    assert [row["coverage"] for row in found] == [with_interval(one.coverage) for one in categories]
    sums = ours.by_prompt
    tasks = {row["task"]: row for row in page.cells("By task: draft") if row["temperature"] == "0"}
    assert tasks["p.jsonl"]["coverage"].startswith(f"{sum(sums.sayable[:2]) / sum(sums.tokens[:2]):.3f}")


def test_beside_a_small_head_a_whole_one_says_all(page_of):
    page = page_of("small", "shallow")
    shown = {row["draft"]: row["coverage"] for row in page.cells("Acceptance and predicted speed")}
    assert shown["shallow"] == "all"
    assert shown["small"] != "all"


def test_without_a_small_head_there_is_no_column(page_of):
    page = page_of("deep", "shallow")
    assert not [row for rows in page.tables.values() for row in rows if {"coverage", "ids it says"} & set(row)]

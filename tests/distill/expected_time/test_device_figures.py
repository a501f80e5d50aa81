"""Device files: what is read of them, and what is said of broken and foreign ones."""

import pytest

from architectures.errors import UserError
from distill.expected_time.device_figures import load_figures


def test_measurements_are_read_and_what_was_left_out_is_none(device_file, records):
    figures = load_figures(device_file(records["h100"]))
    assert (figures.device, figures.measured) == ("NVIDIA H100 80GB HBM3", "2026-12-01")
    assert [row.peak_flops for row in figures.machine] == [None, 700e12, 50e12]
    assert [row.shape for row in figures.steps].count("wide-1.3b") == 0
    assert [(row.model, row.batch) for row in figures.answers] == [("llama-7b", 48), ("llama-7b", 48), ("target", 48)]


def test_rows_of_a_stage_that_was_cut_off_count(device_file, records):
    assert [row.source for row in load_figures(device_file(records["h100"])).distillation] == ["live", "cached", "none"]


def test_summaries_among_the_rows_are_passed_over(device_file, records):
    before = load_figures(device_file(records["h100"]))
    for name in ("steps", "answers", "distillation"):
        rows = records["h100"]["stages"][name]["rows"]
        rows[:0] = [{"aim": "80 % of the floor", "reached": 0.7}, {"deep": "a", "wide": "b", "how": "eager"}]
    assert load_figures(device_file(records["h100"])) == before


def test_a_stage_that_is_not_there_has_no_rows(device_file, records):
    del records["h100"]["stages"]["answers"]
    assert load_figures(device_file(records["h100"])).answers == ()


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("schema",), 2, "schema: Input should be 1, got 2"),
        (("device",), "", "device: String should have at least 1 character, got ''"),
        (("size",), "huge", "size: Input should be 'full', 'laptop' or 'tiny', got 'huge'"),
        (("measured",), "today", "measured: "),
        (("stages", "steps", "status"), "fine", "stages.steps.status: "),
        (("stages", "steps", "rows", 0, "median_ms"), 0, "stages.steps.rows[0]: median_ms: Input should be greater"),
        (("stages", "steps", "rows", 0, "median_ms"), "6", "stages.steps.rows[0]: median_ms: "),
        (("stages", "answers", "rows", 0, "tokens_per_s"), None, "stages.answers.rows[0]: tokens_per_s: "),
        (("stages", "distillation", "rows", 1, "source"), "disk", "stages.distillation.rows[1]: source: "),
        (("stages", "machine", "rows", 1, "peak_flops"), -1.0, "stages.machine.rows[1]: peak_flops: "),
        (("stages",), [], "stages: "),
    ],
)
def test_a_broken_file_is_refused_by_file_key_and_remedy(place, value, said, device_file, records):
    *above, last = place
    inside = records["h100"]
    for key in above:
        inside = inside[key]
    inside[last] = value
    file = device_file(records["h100"])
    with pytest.raises(UserError) as refused:
        load_figures(file)
    assert str(refused.value).startswith(f"{file}: {said}")
    remedy = "Measure the device again with `python -m benchmarks.gpu`, or name another file."
    assert str(refused.value).endswith(remedy)


def test_a_missing_key_is_named(device_file, records):
    del records["h100"]["stages"]["distillation"]["rows"][0]["flops_per_s"]
    with pytest.raises(UserError, match=r"stages\.distillation\.rows\[0\]: flops_per_s: Field required"):
        load_figures(device_file(records["h100"]))


@pytest.mark.parametrize("text", ["", "[]", '{"cells": []}', "not json", '{"schema": 1, "schema"'])
def test_a_foreign_file_is_refused(text, tmp_path):
    (tmp_path / "other.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"other\.json: .*Measure the device again"):
        load_figures(tmp_path / "other.json")


def test_what_a_test_of_the_bench_wrote_is_refused(device_file, records):
    records["h100"]["size"] = "tiny"
    with pytest.raises(UserError, match="size is tiny, which tests the bench and measures nothing"):
        load_figures(device_file(records["h100"]))

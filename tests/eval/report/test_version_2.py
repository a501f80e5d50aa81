"""A scorecard as version 2 wrote it is read as what it is."""

import json

import jsonschema
import pytest

from architectures.errors import UserError
from distill.commands.recipe_reference import schemas
from eval.records.files import read_scorecard
from eval.report_inputs.cards import read_cards


def step_of_2(step):
    """As version 2 had it."""
    median = step.pop("p50_ms")
    step.pop("p99_ms")
    step.update(
        median_ms=median["value"],
        interval_ms=median["interval"],
        p10_ms=step["p10_ms"]["value"],
        p90_ms=step["p90_ms"]["value"],
    )


def as_version_2(record):
    """Steps with bare percentiles; nothing where later figures are null."""
    record["schema"] = "widedraft.scorecard/2"
    latency = record["latency"]
    for step in (latency["target"], *latency["verify"]):
        step_of_2(step)
    for one in latency["drafts"]:
        step_of_2(one["one_token"])
        step_of_2(one["two_tokens"])
    for row in record["acceptance"]:
        del row["by_prompt"]["sayable"]
        for one in (row, *(one for part in row["bins"] for one in part["bins"])):
            del one["coverage"]
    for model in (record["target"], *record["drafts"]):
        del model["head_vocab_size"]
    return record


@pytest.fixture
def path(runs):
    return runs / "deep" / "eval" / "scorecard.json"


def test_its_figures_are_those_of_today(path):
    today = read_scorecard(path)
    path.write_text(json.dumps(as_version_2(json.loads(path.read_text()))))
    found = read_scorecard(path)
    assert found.acceptance == today.acceptance
    assert (found.target, found.drafts, found.live) == (today.target, today.drafts, today.live)
    for old, new in zip(found.latency.steps, today.latency.steps, strict=True):
        assert old.p50_ms == new.p50_ms
        assert (old.p10_ms.value, old.p90_ms.value) == (new.p10_ms.value, new.p90_ms.value)
    assert read_cards([path])[0].rounds is not None


def test_of_before_policies_and_ways_it_has_none(path):
    record = as_version_2(json.loads(path.read_text()))
    del record["policies"], record["settings"]["intervals"], record["live"]["ways"], record["live"]["over_lookup"]
    for row in record["acceptance"]:
        del row["by_prompt"]
    path.write_text(json.dumps(record))
    found = read_scorecard(path)
    assert (found.policies, found.live.ways, found.live.over_lookup) == ((), (), ())
    assert found.settings.intervals == "percentile bootstrap"
    assert {row.by_prompt for row in found.acceptance} == {None}


@pytest.mark.parametrize("part", ["latency", "acceptance", "live", "settings"])
@pytest.mark.parametrize("value", [3, [3], {}, {"drafts": [3], "verify": 3}, None])
def test_a_damaged_one_is_refused_by_its_field(path, part, value):
    if part == "live" and value is None:
        return  # nothing was decoded live
    path.write_text(json.dumps({**as_version_2(json.loads(path.read_text())), part: value}))
    with pytest.raises(UserError, match=rf"scorecard\.json: {part}") as refused:
        read_scorecard(path)
    assert "The file is damaged" in str(refused.value)


@pytest.mark.parametrize("run", ["deep", "small"])
def test_what_is_written_is_what_its_schema_says(runs, run):
    validator = jsonschema.Draft202012Validator(schemas()["scorecard.schema.json"])
    record = json.loads((runs / run / "eval" / "scorecard.json").read_text())
    validator.validate(record)
    assert not validator.is_valid({**record, "latency": {**record["latency"], "repeats": 0}})

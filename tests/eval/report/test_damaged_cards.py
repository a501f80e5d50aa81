"""A scorecard in which any field is something else is refused by the field, or is one a report can be made of."""

import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from architectures.errors import UserError
from eval.acceptance.intervals import holds
from eval.records.files import scorecard_from
from eval.records.scorecard import ScoredSettings
from eval.report.page import report_sections
from eval.report_inputs.cards import read_cards

OPTIONAL = {"model_type", "head_vocab_size", "p99_ms", "speedup_intervals", "evidence", "confidence", "schema"}
YOUNGER = {"sampling", "top_p", "top_k", "min_p", "repetition_penalty", "live_at", "stopping", "p_value"}
YOUNGER |= {"bits", "placement"}  # than scorecards that are still read
OPTIONAL |= YOUNGER
TYPED_SETTINGS = {*ScoredSettings.model_fields}


def places(value, path=()):
    """The way to everything in a JSON value, in the first entry of every list."""
    if path:
        yield path
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    ):
        yield from places(inner, (*path, key))


def is_read(path):
    """Whether a place has a type of its own: other settings and the names of versions are kept as they are."""
    return path[:2] != ("provenance", "versions") and (path[0] != "settings" or path[1:2][0] in TYPED_SETTINGS)


def refusal(record, folder):
    with pytest.raises(UserError) as refused:
        scorecard_from(record, folder)
    assert len(str(refused.value)) < 500
    return str(refused.value)


@pytest.fixture(scope="module")
def text(scored):
    """A scorecard as it was written, with a warning."""
    record = json.loads((scored / "small" / "eval" / "scorecard.json").read_text())
    return json.dumps({**record, "warnings": ["a"]})


@pytest.fixture(scope="module")
def typed_places(text):
    return [path for path in places(json.loads(text)) if len(path) == 1 or is_read(path)]


def at(record, way):
    for key in way:
        record = record[key]
    return record


def test_no_field_may_be_missing(text, typed_places, tmp_path):
    named = [path for path in typed_places if isinstance(path[-1], str) and path[-1] not in OPTIONAL]
    assert len(named) > 200
    for *way, last in named:
        record = json.loads(text)
        del at(record, way)[last]
        assert refusal(record, tmp_path).startswith(f"{tmp_path}: {'.'.join(map(str, (*way, last)))}: Field required")


def test_a_scorecard_of_before_the_younger_fields_is_read(text, typed_places, tmp_path):
    younger = [path for path in typed_places if path[-1] in YOUNGER]
    assert {path[-1] for path in younger} == YOUNGER
    record = json.loads(text)
    for *way, last in reversed(younger):
        del at(record, way)[last]
    target = scorecard_from(record, tmp_path).target
    assert (target.bits, target.placement) == (None, None)


def others(value):
    """Two values of other kinds; of numbers also one that none is."""
    if value is None:
        return [["a"], {"a": 1}]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ["a", float("nan")]
    return [other for other in ({"a": 1}, -1.5, ["a"]) if type(other) is not type(value)][:2]


def test_no_field_is_believed_that_is_something_else(text, typed_places, tmp_path):
    for number, path in enumerate(typed_places):
        *way, last = path
        record = json.loads(text)
        value = others(at(record, path))[number % 2]
        at(record, way)[last] = value
        assert refusal(record, tmp_path).startswith(f"{tmp_path}: "), (path, value)


def replace(record, field, value):
    """Put a value where a field is, in the first entry of every list on the way."""
    *names, last = field.split(".")
    at(record, [int(name) if name.isdigit() else name for name in names])[last] = value


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("settings.confidence", 7, "settings.confidence: Input should be less than 1, got 7"),
        ("settings.num_resamples", 10**12, "settings.num_resamples: Input should be less than or equal to 100000"),
        ("settings.num_resamples", 0, "settings.num_resamples: Input should be greater than or equal to 1"),
        ("latency.repeats", -3, "latency.repeats: Input should be greater than or equal to 1, got -3"),
        ("acceptance.0.lookahead.0.rounds", -1.0, "acceptance.0.lookahead.0.rounds: Input should be greater than 0"),
        ("acceptance.0.by_prompt.tokens", [-1] * 5, "acceptance.0.by_prompt.tokens.0: Input should be greater than"),
        ("live.speedup", {"value": 0.97, "interval": [5, 1.5]}, "live.speedup: Value error, must lie in its"),
        ("live.speedup", {"value": 99, "interval": [0.84, 1.14]}, "live.speedup: Value error, must lie in its"),
        ("live.speedup", {"value": 1.0, "interval": [0.9, float("nan")]}, "live.speedup.interval.1: Input"),
        ("live.decoding_speedup", {"value": -1.0, "interval": None}, "live.decoding_speedup: Value error"),
        ("acceptance.0.alpha.value", 1.5, "acceptance.0.alpha: Value error, must lie in its interval"),
        ("acceptance.0.lookahead.0.tau", {"value": 0.5, "interval": None}, "acceptance.0.lookahead.0.tau: Value"),
        ("differences.0.alpha", {"value": 3, "interval": None}, "differences.0.alpha: Value error, must lie between"),
        ("latency.target.p50_ms", {"value": 0, "interval": None}, "latency.target: Value error, must be above 0"),
        ("latency.target.p50_ms", {"value": 1e6, "interval": None}, "latency.target: Value error, must be above 0"),
    ],
)  # fmt: skip
def test_figures_that_cannot_be_are_refused_where_they_stand(text, tmp_path, field, value, told):
    record = json.loads(text)
    scorecard_from(record, tmp_path)
    replace(record, field, value)
    message = refusal(record, tmp_path)
    assert message.startswith(f"{tmp_path}: {told}")
    assert "The file is damaged" in message


def test_an_interval_holds_its_value_up_to_rounding():
    assert holds(None, 99)
    assert holds([0.5, 1.5], 0.5)
    assert holds([0.1 + 0.2, 1.0], 0.3)
    assert not holds([0.84, 1.14], 99)
    assert not holds([0.84, 1.14], 0.8399)
    assert not holds([5, 1.5], 2)


def leaves(value, path=()):
    """The place of everything in a JSON value."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(inner, (*path, key))


SCALARS = st.none() | st.booleans() | st.integers(-2, 10**20) | st.floats() | st.text(max_size=3)


@settings(max_examples=60, deadline=5000, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_scorecard_of_which_anything_changed_is_refused_or_shown(runs, text, data):
    path = runs / "small" / "eval" / "scorecard.json"
    record = json.loads(text)
    *way, last = data.draw(st.sampled_from([place for place in leaves(record) if place]))
    value = data.draw(
        SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)
    )
    found = record
    for key in way:
        found = found[key]
    found[last] = value
    path.write_text(json.dumps(record))
    with suppress(UserError):
        report_sections(read_cards([runs / "small"]), {})


@pytest.mark.parametrize("content", [b"\xff\x00", b"[" * 100_000, b"9" * 5000, b'{"schema": ' + b"[" * 100_000])
def test_a_card_that_is_no_json_is_refused(runs, content):
    (runs / "small" / "eval" / "scorecard.json").write_bytes(content)
    with pytest.raises(UserError, match=r"scorecard\.json: is "):
        read_cards([runs / "small"])

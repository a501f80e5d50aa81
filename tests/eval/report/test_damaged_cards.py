"""A scorecard in which any field is something else is refused by the field, or is one a report can be made of."""

import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from architectures.errors import UserError
from eval.acceptance.intervals import holds
from eval.record_checks.fields import FIELDS, require_fields
from eval.report.page import report_sections
from eval.report_inputs.cards import read_cards

BAD = (None, "", "a", -1, 10**400, 1e300, float("nan"), float("inf"), True, [], ["a"], {}, {"value": 1})
FITS = {"text": ("", "a"), "numbers": ([],), "number": (-1, 1e300), "list": (["a"],), "object": ({}, {"value": 1})}


def replace(record, field, value):
    """Put a value where a field is, in the first entry of every list on the way."""
    *names, last = (name.rstrip("?") for name in field.split("."))
    for name in names:
        record = record[name.removesuffix("[]")]
        if name.endswith("[]"):
            record = record[0]
    if last.endswith("[]"):
        record[last.removesuffix("[]")][:1] = [value]
    else:
        record[last] = value


@pytest.fixture(scope="module")
def text(scored):
    """A scorecard as it was written, with a warning."""
    record = json.loads((scored / "small" / "eval" / "scorecard.json").read_text())
    return json.dumps({**record, "warnings": ["a"]})


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_is_believed_that_is_something_else(text, tmp_path, field):
    for value in BAD:
        if value is None and field.endswith("?"):
            continue
        if any(value is one or (value == one and type(value) is type(one)) for one in FITS.get(FIELDS[field], ())):
            continue
        record = json.loads(text)
        replace(record, field, value)
        with pytest.raises(UserError) as refused:
            require_fields(record, tmp_path)
        assert str(refused.value).startswith(f"{tmp_path}: {field.split('.')[0].rstrip('[]?')}"), value
        assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("settings.confidence", 7, "settings.confidence must be a number > 0 and < 1, got 7"),
        ("settings.num_resamples", 10**12, "settings.num_resamples must be a whole number > 0 and <= 100,000, got 10"),
        ("settings.num_resamples", 0, "settings.num_resamples must be a whole number > 0"),
        ("latency.repeats", -3, "latency.repeats must be a whole number > 0, got -3"),
        ("acceptance[].lookahead[].rounds", -1.0, "acceptance[0].lookahead[0].rounds must be a number > 0, got -1.0"),
        ("acceptance[].by_prompt.tokens", [-1] * 5, "acceptance[0].by_prompt.tokens must be a list of numbers >= 0"),
        ("live.speedup", {"value": 0.97, "interval": [5, 1.5]}, "live.speedup must be {value, interval} with a"),
        ("live.speedup", {"value": 99, "interval": [0.84, 1.14]}, "live.speedup must be {value, interval} with a"),
        ("live.speedup", {"value": 1.0, "interval": [0.9, float("nan")]}, "live.speedup must be"),
        ("live.decoding_speedup", {"value": -1.0, "interval": None}, "live.decoding_speedup must be"),
        ("acceptance[].alpha.value", 1.5, "acceptance[0].alpha must be {value, interval} with a value from 0 to 1"),
        ("acceptance[].lookahead[].tau.value", 0.5, "acceptance[0].lookahead[0].tau must be"),
        ("differences[].alpha.value", 3, "differences[0].alpha must be {value, interval} from -1 to 1"),
        ("latency.target.median_ms", 0, "latency.target must be {median_ms, interval_ms, p10_ms, p90_ms} > 0"),
        ("latency.target.median_ms", 1e6, "latency.target must be {median_ms, interval_ms, p10_ms, p90_ms} > 0"),
    ],
)  # fmt: skip
def test_figures_that_cannot_be_are_refused_where_they_stand(text, tmp_path, field, value, told):
    record = json.loads(text)
    require_fields(record, tmp_path)
    replace(record, field, value)
    with pytest.raises(UserError) as refused:
        require_fields(record, tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}: {told}")
    assert "The file is damaged" in str(refused.value)


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

"""A device's file, call by call."""

from benchmarks.gpu.record import with_earlier

CELL = {"shape": "wide-796m", "how": "captured", "batch": 1, "context": 1024}


def earlier(*rows):
    return {"provenance": {"created": "2026-01-02T03:04:05+00:00"}, "rows": list(rows)}


def step(tokens, **what):
    return CELL | {"tokens": tokens} | what


def test_what_a_later_call_had_no_time_for_keeps_its_earlier_row():
    rows = with_earlier(
        "steps",
        [step(1, seconds=1.0), step(2, skipped="no time"), step(3, failed="a bug"), step(4, skipped="no time")],
        earlier(step(1, seconds=9.0), step(2, seconds=2.0), step(3, seconds=3.0), step(5, seconds=5.0)),
    )
    when = {"measured": "2026-01-02T03:04:05+00:00"}
    assert rows == [
        step(1, seconds=1.0),
        when | step(2, seconds=2.0),
        when | step(3, seconds=3.0),
        when | step(5, seconds=5.0),
        step(4, skipped="no time"),
    ]
    again = with_earlier("steps", [step(1, seconds=0.5)], earlier(*rows) | {"provenance": {"created": "later"}})
    assert again[1] == when | step(2, seconds=2.0)
    assert [row["seconds"] for row in again if "seconds" in row] == [0.5, 2.0, 3.0, 5.0]


def test_rows_that_belong_together_are_made_whole():
    rows = [{"what": "trained"}]
    assert with_earlier("draft", rows, earlier({"what": "other"})) == rows
    assert with_earlier("steps", rows, None) == rows

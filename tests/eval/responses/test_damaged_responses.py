"""Recorded responses that are damaged, foreign or hostile are refused with file, line, field and value."""

import json
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from architectures.errors import UserError
from eval.recorded import read_recorded_traces
from eval.responses import claim_shards, read_claims, read_shard, read_traces, write_shard
from tests.rejections import rejects

ROW = {
    "id": 0,
    "source": "p.jsonl:1",
    "messages": [{"role": "user", "content": "why"}],
    "prompt_ids": [1, 5],
    "response_ids": [7, 2],
    "response": "a",
    "finish_reason": "stop",
    "category": None,
}
SETTINGS = {"temperature": 0.0, "top_p": 1.0, "target": "a" * 64}


@pytest.fixture
def folder(tmp_path):
    """Two responses."""
    [path] = claim_shards(tmp_path, "eval", SETTINGS, num_shards=1, tokenizer={"vocabulary": "b"})
    write_shard(path, [ROW, {**ROW, "id": 3, "task": "gsm8k/1"}])
    return tmp_path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("id", value) for value in (None, "a", -1, True, 1.5, [], {}, float("nan"))),
        *(
            (name, value)
            for name in ("prompt_ids", "response_ids")
            for value in (None, "a", 7, [], {}, ["a"], [-1], [True], [1.5], [10**12], [None], [[1]], [1, "2"])
        ),
        *(("messages", value) for value in (None, "why", [3], [{"role": 3}], [{"role": ""}], [{"content": ""}])),
        *(("source", value) for value in (None, 3, [])),
        *(("response", value) for value in (None, 3)),
        *(("finish_reason", value) for value in (None, "eos", 1)),
        *(("category", value) for value in (3, [])),
        ("an_unknown_field", 1),
    ],
)  # fmt: skip
def test_a_field_that_no_response_has_is_refused(folder, name, value):
    path = folder / "eval-00000.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "id": 3, name: value}) + "\n")
    with rejects("eval-00000.jsonl:2:", name):
        read_traces(folder, "eval")


@pytest.mark.parametrize("line", [b"\xff\xfe\x00", b"", b"[" * 100_000, b"9" * 5000, b"[]", b"{}"], ids=range(6))
def test_a_line_that_is_no_response_is_refused(folder, line):
    (folder / "eval-00000.jsonl").write_bytes(line + b"\n")
    with rejects("eval-00000.jsonl:1:") as refused:
        read_traces(folder, "eval")
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("second", [0, 3])
def test_ids_ascend(folder, second):
    write_shard(folder / "eval-00000.jsonl", [{**ROW, "id": 3}, {**ROW, "id": second}])
    with rejects("eval-00000.jsonl:2:", "id", 3, second):
        read_traces(folder, "eval")


@pytest.mark.parametrize(
    ("claim", "named"),
    [
        ({}, "eval.settings"),
        ([], "eval: []"),
        ({"settings": SETTINGS}, "eval.num_shards"),
        *(
            ({"settings": SETTINGS, "num_shards": n}, "eval.num_shards")
            for n in ("1", -1, 10**6 + 1, 10**12, 1.5, True, None)
        ),
        ({"settings": 3, "num_shards": 1}, "eval.settings 3"),
        ({"settings": SETTINGS, "num_shards": 1, "tokenizer": "a"}, "eval.tokenizer"),
    ],
)
def test_claims_are_read_or_refused(folder, claim, named):
    (folder / "settings.json").write_text(json.dumps({"eval": claim}))
    start_s = time.monotonic()
    with rejects("settings.json:", *named.split()):
        read_claims(folder)
    assert time.monotonic() - start_s < 1


@pytest.mark.parametrize(("name", "value"), [("temperature", "hot"), ("top_p", 0), ("target", 3)])
def test_settings_of_recorded_responses_are_typed(tiny_target, folder, name, value):
    tokenizer = {"vocabulary": "", "bos_token_id": 1, "eos_token_id": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eval.recorded.tokenizer_identity", lambda _: tokenizer)
        claim = {"settings": {**SETTINGS, name: value}, "num_shards": 1, "tokenizer": tokenizer}
        (folder / "settings.json").write_text(json.dumps({"eval": claim}))
        with rejects("settings.json:", "eval.settings:", f"{name}:"):
            read_recorded_traces(folder, tiny_target)


def test_recorded_ids_beyond_the_draft_are_refused(tiny_target, folder):
    tokenizer = {"vocabulary": "", "bos_token_id": 1, "eos_token_id": 2}
    write_shard(folder / "eval-00000.jsonl", [{**ROW, "response_ids": [10**9]}])
    claim = {"settings": SETTINGS, "num_shards": 1, "tokenizer": tokenizer}
    (folder / "settings.json").write_text(json.dumps({"eval": claim}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eval.recorded.tokenizer_identity", lambda _: tokenizer)
        with rejects("eval-00000.jsonl:1:", 1000000000, "vocab_size", 264):
            read_recorded_traces(folder, tiny_target)


@settings(max_examples=200, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["eval-00000.jsonl", "settings.json"]),
    place=st.floats(0, 1, exclude_max=True),
    insert=st.binary(max_size=6),
    remove=st.integers(0, 30),
)
def test_any_bytes_of_the_responses_may_change(folder, name, place, insert, remove):
    path = folder / name
    data = path.read_bytes()
    start = int(place * len(data))
    path.write_bytes(data[:start] + insert + data[start + remove :])
    try:
        with suppress(UserError):
            read_traces(folder, "eval")
    finally:
        path.write_bytes(data)


def test_a_setting_that_only_one_of_two_runs_has_is_a_change(tmp_path):
    claim_shards(tmp_path, "train", {"same": 1, "gone": 2}, num_shards=1)
    with rejects("come", 3, "gone", 2):
        claim_shards(tmp_path, "train", {"same": 1, "come": 3}, num_shards=1)


def test_text_of_any_language_stays_legible_and_comes_back(tmp_path):
    rows = [{"answer": "schöne Grüße\u2028"}, {"answer": "日本語\n"}]
    [path] = claim_shards(tmp_path, "train", {}, num_shards=1)
    write_shard(path, rows)
    assert "schöne Grüße" in path.read_text(encoding="utf-8")
    assert list(read_shard(path)) == rows

"""How far prediction is from measurement is kept as a file that a command makes, of what `widedraft speed` measures."""

import json
import runpy
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    return runpy.run_path(str(BENCH / "predict.py"))


@pytest.fixture
def prompts_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"Add {number} and 2, please."} for number in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_draft_lookahead_and_batch_is_predicted_and_measured(
    bench, make_checkpoint, prompts_file, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("eval.commands.speed.STEP_REPEATS", 4)
    out = tmp_path / "predict.json"
    few = ["--layers", "1", "--lookahead", "1", "3", "--batches", "1", "2", "--groups", "2", "--max-new-tokens", "6"]
    files = ["--target", str(make_checkpoint(seed=1)), "--prompts", str(prompts_file), "--out", str(out)]
    bench["main"]([*files, *few, "--noise", "0", "--num-threads", "1"])
    record, printed = json.loads(out.read_text()), capsys.readouterr().out
    named = [(row["batch"], row["draft"], row["lookahead"]) for row in record["rows"]]
    expected = [(b, d, n) for b in (1, 2) for n in (1, 3) for d in ("1 layers", "noise 0")]
    assert sorted(named) == sorted(expected)
    for row in record["rows"]:
        assert row["error"] == pytest.approx(row["predicted"]["value"] / row["measured"]["value"] - 1)
        assert row["tau"] >= 1
        assert f"{row['error']:+.1%}" in printed
    assert {row["tau"] for row in record["rows"] if row["draft"] == "noise 0" and row["lookahead"] == 1} == {2.0}
    assert abs(record["largest_error"]) == max(abs(row["error"]) for row in record["rows"])
    assert f"differ by at most {abs(record['largest_error']):.1%}." in printed
    assert record["settings"]["batches"] == [1, 2]

"""The command line where the target is not there: recorded answers, their export, and files of rounds."""

import json
from pathlib import Path

import pytest

import widedraft
from eval.answers.traces import DecodingSettings
from eval.decoding.answering import write_traces
from eval.prompts import Prompt

GREEDY = DecodingSettings(
    max_new_tokens=20,
    temperature=0.0,
    top_p=1.0,
    batch_size=4,
    shard_size=4,
    max_prompt_len=200,
    seed=5,
    dtype="float32",
)
PROMPTS = [Prompt(f"p:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(("why", "how many", "x"))]
FAST = ["eval.num_threads=1", "eval.num_resamples=50", "eval.lookaheads=[1,2,3,4]"]


@pytest.fixture(scope="module")
def traces(tiny_target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    write_traces(tiny_target, PROMPTS, folder, GREEDY, name="eval")
    return folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_traces_are_scored_exported_scored_again_and_their_rounds_read(traces, tiny_target, tiny_draft, capsys):
    assert widedraft.main(["eval", "--recorded", str(traces), "--draft", str(tiny_draft), *FAST, "seed=3"]) == 0
    out = Path(f"eval-{tiny_draft.name}")
    assert f"scorecard: {out / 'scorecard.md'}" in capsys.readouterr().out
    first = json.loads((out / "scorecard.json").read_text())
    assert first["settings"]["seed"] == 3
    assert [entry["lookahead"] for entry in first["acceptance"][0]["lookahead"]] == [1, 2, 3, 4]

    assert widedraft.main(["export-recorded", str(traces), "--tokenizer", str(tiny_target), "--to", "text"]) == 0
    assert "text: 3 answers as ground_truth.txt and prompts.jsonl" in capsys.readouterr().out
    words = ["--recorded", "text/ground_truth.txt", "--prompts", "text/prompts.jsonl", "--draft", str(tiny_draft)]
    assert widedraft.main(["eval", *words, "--out", "card", *FAST]) == 0
    assert "WARNING: The text does not say which tokenizer" in capsys.readouterr().out
    second = json.loads(Path("card/scorecard.json").read_text())
    assert second["acceptance"][0]["accept_rate"]["sum"] == first["acceptance"][0]["accept_rate"]["sum"]


def test_an_answered_beginning_of_many_prompts_is_scored_whole_and_said(tiny_draft, capsys):
    """As published: fewer blocks than prompts. All that are answered are scored, unless eval.num_prompts says fewer."""
    Path("truth.txt").write_text("".join(f"tensor([[{5 + i}, 6, 7]])\n" for i in range(70)))
    Path("p.jsonl").write_text("".join(f'{{"prompt": "row {i}"}}\n' for i in range(4321)))
    words = ["eval", "--recorded", "truth.txt", "--prompts", "p.jsonl", "--draft", str(tiny_draft), "--out", "card"]
    said = "truth.txt answers the first 70 of 4,321 prompts: these are used, the 4,251 behind them are left out."
    for told, scored in (([], 70), (["eval.num_prompts=2"], 2)):
        assert widedraft.main([*words, *FAST, *told]) == 0
        assert f"WARNING: {said}" in capsys.readouterr().out
        assert said in Path("card/scorecard.md").read_text()
        card = json.loads(Path("card/scorecard.json").read_text())
        assert said in card["warnings"]
        recording = card["recording"]
        assert [recording[name] for name in ("given", "unanswered", "scored")] == [70, 4251, scored]
        assert card["settings"]["num_prompts"] == scored


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recorded", "TRACES"], "--draft must be given too."),
        (["--recorded", "TRACES", "--draft", "x", "--target", "y"], "--target must be left out beside --recorded"),
        (["--recorded", "TRACES", "--draft", "x", "--prompts", "p"], "--prompts must be left out: the traces in"),
        (["--recorded", "r.txt", "--draft", "x"], "--prompts must be given too: r.txt holds answers without"),
        (
            ["--recorded", "r.txt", "--draft", "DRAFT", "--prompts", "a.jsonl", "--prompts", "b.jsonl"],
            "--prompts must name one file beside r.txt, got a.jsonl and b.jsonl.",
        ),
        (
            ["--recorded", "r.txt", "--draft", "DRAFT", "--prompts", "hellaswag=a.jsonl"],
            "--prompts must name one file beside r.txt, got hellaswag=a.jsonl.",
        ),
        (["--recorded", "none", "--draft", "x"], "none: is not there. Give a folder of traces, or a text file"),
        (["--recorded", "TRACES", "--draft", "x", "--debug"], "--debug shrinks a recipe"),
        (
            ["--recorded", "TRACES", "--draft", "x", "eval.temperatures=[1.0]", "eval.live_prompts=4"],
            "eval.live_prompts, eval.temperatures must be left out beside --recorded",
        ),
        (
            ["--recorded", "TRACES", "--draft", "x", "eval={batch_size: 4, num_prompts: 2}"],
            "eval.batch_size must be left out beside --recorded",
        ),
        (["--recorded", "TRACES", "--draft", "x", "a.yaml"], "command line: a.yaml: a.yaml must be key=value"),
        (["a.yaml", "--out", "x"], "widedraft eval needs a RECIPE alone, or --target, --draft and --prompts, or --rec"),
    ],
)
def test_eval_of_recorded_answers_says_what_it_needs(words, message, traces, tiny_draft, capsys):
    Path("r.txt").write_text("tensor([[1]])")
    words = [{"TRACES": str(traces), "DRAFT": str(tiny_draft)}.get(word, word) for word in words]
    assert widedraft.main(["eval", *words]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_every_key_that_counts_may_be_set(traces, tiny_draft):
    counted = ["eval.num_prompts=2", "eval.dtype=float32", "eval.confidence=0.9"]
    assert widedraft.main(["eval", "--recorded", str(traces), "--draft", str(tiny_draft), *FAST, *counted]) == 0
    settings = json.loads(Path(f"eval-{tiny_draft.name}/scorecard.json").read_text())["settings"]
    assert (settings["num_prompts"], settings["confidence"]) == (2, 0.9)

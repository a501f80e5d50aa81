"""The command line without the target: recorded responses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import widedraft
from eval.decoding.generate import write_traces
from eval.prompts import Prompt
from tests.eval.responses.test_traces import GREEDY

SETTINGS = replace(GREEDY, max_new_tokens=20, batch_size=4)
PROMPTS = [Prompt(f"p:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(("why", "how many", "x"))]
FAST = ["eval.num_speculative_tokens=[1,2,3,4]"]


@pytest.fixture(scope="module")
def traces(tiny_target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    write_traces(tiny_target, PROMPTS, folder, SETTINGS, name="eval")
    return folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_traces_and_text_are_scored(traces, tiny_draft, capsys):
    assert widedraft.main(["eval", "--recorded", str(traces), "--draft", str(tiny_draft), *FAST, "seed=3"]) == 0
    out = Path(f"eval-{tiny_draft.name}")
    assert f"scorecard: {out / 'scorecard.md'}" in capsys.readouterr().out
    card = json.loads((out / "scorecard.json").read_text())
    assert card["settings"]["seed"] == 3
    assert [entry["num_speculative_tokens"] for entry in card["acceptance"][0]["by_k"]] == [
        1,
        2,
        3,
        4,
    ]

    Path("truth.txt").write_text("".join(f"tensor([[{5 + i}, 6, 7]])\n" for i in range(70)))
    Path("p.jsonl").write_text("".join(f'{{"prompt": "row {i}"}}\n' for i in range(4321)))
    words = ["eval", "--recorded", "truth.txt", "--prompts", "p.jsonl", "--draft", str(tiny_draft), "--out", "card"]
    for told, scored in (([], 70), (["eval.num_prompts=2"], 2)):
        assert widedraft.main([*words, *FAST, *told]) == 0
        recording = json.loads(Path("card/scorecard.json").read_text())["recording"]
        assert [recording[name] for name in ("given", "unanswered", "scored")] == [70, 4251, scored]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--recorded", "TRACES"], "--draft"),
        (["--recorded", "TRACES", "--draft", "x", "--target", "y"], "--target"),
        (["--recorded", "TRACES", "--draft", "x", "--prompts", "p"], "--prompts"),
        (["--recorded", "r.txt", "--draft", "x"], "--prompts"),
        (["--recorded", "r.txt", "--draft", "DRAFT", "--prompts", "a.jsonl", "--prompts", "b.jsonl"], "b.jsonl"),
        (["--recorded", "r.txt", "--draft", "DRAFT", "--prompts", "hellaswag=a.jsonl"], "hellaswag=a.jsonl"),
        (["--recorded", "none", "--draft", "x"], "none"),
        (["--recorded", "TRACES", "--draft", "x", "--debug"], "--debug"),
        (["--recorded", "TRACES", "--draft", "x", "eval.temperatures=[1.0]"], "eval.temperatures"),
        (["--recorded", "TRACES", "--draft", "x", "eval={batch_size: 4, num_prompts: 2}"], "eval.batch_size"),
        (["--recorded", "TRACES", "--draft", "x", "a.yaml"], "a.yaml"),
        (["a.yaml", "--out", "x"], "--out"),
    ],
)
def test_eval_of_recorded_responses_names_what_it_needs(words, named, traces, tiny_draft, capsys):
    Path("r.txt").write_text("tensor([[1]])")
    words = [{"TRACES": str(traces), "DRAFT": str(tiny_draft)}.get(word, word) for word in words]
    assert widedraft.main(["eval", *words]) == 2
    assert named in capsys.readouterr().err

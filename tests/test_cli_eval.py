"""The command line: scoring any pair on any prompts, or a draft on recorded responses, without a recipe."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import widedraft
from architectures.settings import WHOLE
from eval.decoding.generate import write_traces
from eval.prompts import Prompt
from tests.eval.conftest import GREEDY


@pytest.fixture
def prompts(tmp_path, monkeypatch):
    """Ten prompts in the working folder."""
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(json.dumps({"prompt": f"Count to {n}."}) for n in range(10))
    Path("prompts.jsonl").write_text(rows, encoding="utf-8")


@pytest.fixture
def scored(monkeypatch):
    """Every call of score_drafts."""
    from eval import scorecard, scorecard_tables

    calls = []

    def score_drafts(target, drafts, prompts, config, out, *, seed, generated_by, holding, share):
        calls.append((target, drafts, [prompt.source for prompt in prompts], config.num_prompts, out, seed))
        assert holding == WHOLE
        return {}

    monkeypatch.setattr(scorecard, "score_drafts", score_drafts)
    monkeypatch.setattr(scorecard_tables, "summary", lambda _: "summary")
    return calls


def test_eval_of_any_pair_on_any_prompts(prompts, tiny_target, tiny_draft, scored, capsys):
    Path("prompts.jsonl").write_text('{"prompt": "Hello"}\n', encoding="utf-8")
    pair = ["--target", str(tiny_target), "--draft", str(tiny_draft), "--prompts", "prompts.jsonl"]
    assert widedraft.main(["eval", "eval.num_prompts=3", *pair, "seed=4"]) == 0
    assert widedraft.main(["eval", *pair, "--out", "cards"]) == 0
    out = Path(f"eval-{tiny_draft.name}")
    drafts = {"draft": tiny_draft}
    assert scored == [
        (tiny_target, drafts, ["prompts.jsonl:1"], 3, out, 4),
        (tiny_target, drafts, ["prompts.jsonl:1"], 64, Path("cards"), 17),
    ]
    assert str(out / "scorecard.md") in capsys.readouterr().out


def test_eval_takes_prompts_of_several_tasks_and_files_in_turn(prompts, tiny_target, tiny_draft, scored):
    Path("rows.jsonl").write_text('{"question": "2+2?"}\n{"question": "3+3?"}\n', encoding="utf-8")
    words = ["--target", str(tiny_target), "--draft", str(tiny_draft), "--prompts", "gsm8k=rows.jsonl"]
    assert widedraft.main(["eval", *words, "--prompts", "prompts.jsonl", "eval.num_prompts=3"]) == 0
    [(_, _, sources, *_)] = scored
    assert sources[:5] == [
        *(f"{name}.jsonl:{row}" for row in (1, 2) for name in ("rows", "prompts")),
        "prompts.jsonl:3",
    ]
    assert len(sources) == 12


def test_a_baseline_is_scored_first_and_the_draft_decoded_live(prompts, tiny_target, tiny_draft, scored):
    Path("prompts.jsonl").write_text('{"prompt": "Hello"}\n', encoding="utf-8")
    pair = ["--target", str(tiny_target), "--draft", str(tiny_draft), "--prompts", "prompts.jsonl"]
    assert widedraft.main(["eval", *pair, "--baseline", str(tiny_target)]) == 0
    [(_, drafts, *_)] = scored
    assert list(drafts.items()) == [("baseline", tiny_target), ("draft", tiny_draft)]


def test_the_target_as_its_own_draft_is_one_line(prompts, tiny_target, scored, capsys):
    pair = ["--target", str(tiny_target), "--draft", str(tiny_target), "--prompts", "prompts.jsonl"]
    assert widedraft.main(["eval", *pair]) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert str(tiny_target) in line
    assert len(scored) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "RECIPE"),
        (["demo.yaml", "--baseline", "x"], "--baseline"),
        (["demo.yaml", "--out", "x"], "--out"),
        (["--draft", "x"], "--target"),
        (["--draft", "x", "--target", "y", "--prompts", "z", "demo.yaml"], "demo.yaml"),
        (["--draft", "x", "--target", "y", "--prompts", "z", "eval.tasks=[{path: a}]"], "eval.tasks"),
    ],
)
def test_eval_says_what_it_needs(words, message, prompts, scored, capsys):
    assert widedraft.main(["eval", *words]) == 2
    assert message in capsys.readouterr().err
    assert scored == []


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
    assert [entry["num_speculative_tokens"] for entry in card["acceptance"][0]["by_k"]] == [1, 2, 3, 4]

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
        (["--endpoint", "http://user:key@host"], "--endpoint"),
        (["--endpoint", "http://x", "--draft", "b"], "--target"),
    ],
)
def test_eval_of_recorded_responses_or_an_endpoint_names_what_it_needs(words, named, traces, tiny_draft, capsys):
    Path("r.txt").write_text("tensor([[1]])")
    words = [{"TRACES": str(traces), "DRAFT": str(tiny_draft)}.get(word, word) for word in words]
    assert widedraft.main(["eval", *words]) == 2
    assert named in capsys.readouterr().err

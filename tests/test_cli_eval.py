"""The command line: scoring any pair on any prompts, without a recipe."""

import json
from pathlib import Path

import pytest

import widedraft
from architectures.settings import WHOLE


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

"""Longer trainings of those still in play: who that is, from where they go on, and what a second try finds."""

import json
from dataclasses import replace

import pytest

from architectures.errors import UserError
from architectures.tables import markdown
from distill.checkpoints.files import find_checkpoints
from distill.choose.ranked.page import cells_verdict, rung_page
from distill.choose.shapes.durations import rung_durations
from distill.choose.shapes.left_out import LeftOut
from distill.choose.trainings import rungs as asking
from distill.choose.trainings.in_play import beaten, in_play
from distill.choose.trainings.rungs import Cell, Rung, ranked_cells, rungs
from distill.choose.trainings.trials import cut_recipe, trials_of
from distill.run.run import Run
from eval import scorecard
from eval.speedup import Ranked
from tests.distill.choose.asked import candidates_of, run_choose
from tests.eval import records

INTERVAL = (0.9, 1.2)


def ranked(*shares, interval=INTERVAL):
    """Candidates a, b, c ..., the fastest first, by the share of draws in which each comes first."""
    return tuple(
        Ranked(name, 4, 1.5 - place / 10, interval, 20.0, share)
        for place, (name, share) in enumerate(zip("abcdefgh", shares, strict=False))
    )


def drafts(found):
    return "".join(each.draft for each in found)


@pytest.mark.parametrize(
    ("shares", "kept"),
    [
        ((1.0, 0.0), "a"),
        ((0.97, 0.03), "ab"),
        ((1.0, 0.0, 0.0), "ab"),
        ((1.0, 0.0, 0.0, 0.0), "ab"),
        ((0.9, 0.05, 0.0, 0.05), "abd"),
        ((0.9, 0.0, 0.0, 0.024, 0.076), "abce"),
        ((1.0,), "a"),
    ],
)
def test_the_better_half_and_whoever_may_be_first_are_in_play(shares, kept):
    assert drafts(in_play(ranked(*shares))) == kept


def test_without_intervals_nobody_is_beaten():
    assert drafts(in_play(ranked(1.0, 0.0, 0.0, 0.0, interval=None))) == "abcd"


def test_who_is_beaten_is_told_by_what():
    [third, fourth] = beaten(ranked(0.99, 0.01, 0.0, 0.0), "100ba")
    assert third == LeftOut("c", "beaten", "1.30x, where a promises 1.50x; the fastest in 0.0% of draws", after="100ba")
    assert fourth.candidate == "d"


@pytest.mark.parametrize(
    ("first", "longest", "lengths"),
    [
        ("100ba", None, ["100ba", "200ba", "400ba"]),
        ("100ba", "100ba", ["100ba"]),
        ("100ba", "300ba", ["100ba", "200ba", "300ba"]),
        ("1ep", "2ep", ["1ep", "2ep"]),
        ("1_000tok", "4000tok", ["1_000tok", "2000tok", "4000tok"]),
    ],
)
def test_trainings_are_twice_as_long_each_time(first, longest, lengths):
    assert rung_durations(first, longest) == lengths


@pytest.mark.parametrize("longest", ["99ba", "2ep"])
def test_a_longest_training_that_is_none_is_refused(recipe_file, longest, capsys):
    with pytest.raises(UserError, match=f"--longest {longest}: must be in ba, and no less than --duration"):
        rung_durations("100ba", longest)
    assert run_choose(recipe_file, "--duration", "100ba", "--longest", longest) == 2
    assert "no less than --duration, which is 100ba" in capsys.readouterr().err


@pytest.fixture
def told(monkeypatch):
    """Trainings that only say what was asked; rankings are given by length, and default to the order of names."""
    asked, shares = [], {}

    def train(_run, candidates, trials, length, earlier):
        asked.append((length, earlier, [each.name for each in candidates], sorted(trials)))
        return {each.name: each.name for each in candidates}

    def cells(names, _timed):
        length = asked[-1][0]
        found = [replace(one, draft=name) for one, name in zip(ranked(*shares[length]), names, strict=True)]
        return [Cell(0.0, 1, 9, tuple(found))]

    monkeypatch.setattr(asking, "prepare_answers", lambda _: None)
    monkeypatch.setattr(asking, "train_candidates", train)
    monkeypatch.setattr(asking, "score_candidates", lambda _run, drafts, _length: list(drafts))
    monkeypatch.setattr(asking, "ranked_cells", cells)
    return asked, shares


def test_those_in_play_are_trained_on_from_where_they_were(recipe, source, told):
    asked, shares = told
    shares |= {"2ba": (1.0, 0.0, 0.0), "4ba": (0.5, 0.5), "8ba": (0.5, 0.5)}
    candidates = candidates_of(recipe, source, [1, 2, 3])
    found = list(rungs(Run.of(recipe), candidates, ["2ba", "4ba", "8ba"], ()))
    every = ["1-layers", "2-layers", "3-layers"]
    assert asked == [
        ("2ba", None, every, every),
        ("4ba", "2ba", every[:2], every),
        ("8ba", "4ba", every[:2], every),
    ]
    assert [[out.candidate for out in rung.left_out] for rung in found] == [["3-layers"], [], []]


def test_one_that_is_left_is_not_trained_on(recipe, source, told):
    asked, shares = told
    shares |= {"2ba": (1.0, 0.0)}
    assert len(list(rungs(Run.of(recipe), candidates_of(recipe, source, [1, 2]), ["2ba", "4ba"], ()))) == 1
    assert len(asked) == 1


def test_a_body_whose_other_heads_are_out_goes_on_with_its_whole_head(recipe, source):
    """Else the second training would have another head than the checkpoint it goes on from."""
    candidates = candidates_of(recipe, source, [1], None, [50, 0])
    trials = trials_of(candidates)
    assert trials["1-layers"].architecture.vocabulary is None
    assert trials["1-layers"] == candidates[1].recipe
    assert cut_recipe(candidates[0], source).architecture.vocabulary is not None


def test_every_temperature_and_place_is_ranked_and_the_first_decides():
    rows = [records.acceptance(name, t, {1: [5] * 4}, [10] * 4) for t in (0.0, 1.0) for name in ("a", "b")]
    rows[0] = records.acceptance("a", 0.0, {1: [6] * 4}, [10] * 4)
    own = records.latency(40.0, {1: 44.0}, {"a": (4.0, 4.0), "b": (6.0, 6.0)}, 0.01)
    asked = replace(own, batch=4, context_tokens=64)
    resampling = scorecard_settings()

    class Card:
        temperatures, latency, settings = (0.0, 1.0), own, resampling

        def rows_at(self, temperature):
            return [row for row in rows if row.temperature == temperature]

    found = list(ranked_cells(Card(), ()))
    assert [(cell.temperature, cell.batch, cell.context) for cell in found] == [(0.0, 1, 9), (1.0, 1, 9)]
    assert [cell.ranked[0].draft for cell in found] == ["b", "a"]
    placed = list(ranked_cells(Card(), [asked, own]))
    assert [(cell.temperature, cell.batch, cell.context) for cell in placed] == [
        (0.0, 4, 64),
        (0.0, 1, 9),
        (1.0, 4, 64),
        (1.0, 1, 9),
    ]


def scorecard_settings():
    from types import SimpleNamespace

    from eval.acceptance.estimates import Resampling

    return SimpleNamespace(resampling=Resampling(0.95, 50, 17))


def test_the_page_says_where_another_comes_first():
    here, there = Cell(0.0, 1, 128, ranked(0.9, 0.1)), Cell(1.0, 16, 1024, ranked(0.9, 0.1)[::-1])
    page = markdown(*rung_page(Rung("100ba", (here, there), tuple(beaten(ranked(1.0, 0.0), "100ba")))))
    assert "Predicted speed after 100ba of training, temperature 0, batch 1, 128 tokens of context" in page
    assert "| 1 | 16 | 1,024 | b | 1.40x [0.90, 1.20] | 10% of draws | 1.50x, first in 90% |" in page
    assert "The first row decides. Elsewhere another comes first: b at temperature 1, batch 16, 1,024 tokens" in page
    assert "Not trained beyond 100ba: 1 of 2 shapes left out" in page
    assert "It comes first everywhere." in cells_verdict((here, here))
    assert "decides" not in markdown(*rung_page(Rung("100ba", (here,))))


@pytest.mark.usefixtures("prospects", "training_here")
def test_a_search_that_was_stopped_goes_on_where_it_was(recipe_file, tmp_path, capsys, monkeypatch):
    """The second training stops the first time; the first one's drafts and scorecard are then as they were."""
    words = ("distill.autoresume=false", "--layers", 1, 2, "--duration", "2ba", "--longest", "4ba")
    scored = []

    def stopped(target, found, *rest, **named):
        scored.append(sorted(found))
        if len(scored) == 2:
            raise UserError("stopped")
        return score(target, found, *rest, **named)

    score = scorecard.score_drafts
    monkeypatch.setattr(scorecard, "score_drafts", stopped)
    assert run_choose(recipe_file, *words) == 2
    choose = tmp_path / "out" / "choose"
    assert json.loads((choose / "choice.json").read_text())["winner"] is None
    assert run_choose(recipe_file, *words) == 0
    printed = capsys.readouterr().out
    assert scored == [["1-layers", "2-layers"]] * 3
    for made in ("2ba/1-layers/draft", "2ba/2-layers/draft", "4ba/1-layers/draft", "2ba/eval"):
        assert f"{choose / made}: up to date" in printed
    found = json.loads((choose / "choice.json").read_text())
    assert [rung["length"] for rung in found["rungs"]] == ["2ba", "4ba"]
    assert found["winner"] == found["rungs"][1]["cells"][0]["ranked"][0]["draft"]
    first, second = (choose / length / "1-layers" / "checkpoints" for length in ("2ba", "4ba"))
    assert [path.name for path in find_checkpoints(first)] == ["ep1-ba2-rank0.pt"]
    [earlier, later] = find_checkpoints(second)
    assert earlier.resolve() == (first / "ep1-ba2-rank0.pt").resolve()
    assert not later.is_symlink()
    batches = [
        json.loads(line)["batch"] for line in (second.parent / "logs" / "metrics.jsonl").read_text().splitlines()
    ]
    assert min(batches) >= 2  # what was trained is not trained again
    assert (choose / "2ba" / "eval" / "answers").resolve() == (choose / "4ba" / "eval" / "answers").resolve()

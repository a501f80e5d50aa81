"""`choose --budget`: what makes each candidate pay, by a law of trainings; and what is refused."""

import json
from dataclasses import asdict, replace

import pytest

import widedraft
from distill.budget.record import read_trainings, write_trainings
from distill.choose.foretold import budget as asking
from eval.acceptance.speedup import StepTimes
from tests.distill.choose.foretold import trainings_of

FILE = "trainings.json"


@pytest.fixture
def here(tiny_target, tmp_path, monkeypatch):
    """A folder with a recipe and a file of trainings of its target; steps take what is written here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"Say {i}."}) + "\n" for i in range(40)))
    (tmp_path / "recipe.yaml").write_text(
        f"run_name: tiny\ntarget: {{path: {tiny_target}, dtype: float32}}\n"
        "architecture: {method: first_last, layers: 1, vocabulary: {size: 260, from: answers}}\n"
        "data: {prompts: [{path: prompts.jsonl}], num_eval_prompts: 8}\n"
        "distill: {max_duration: 3ep}\n"
    )
    write_trainings(trainings_of(tiny_target), tmp_path / FILE)
    steps = {"draft_two_s": 0.0, "verify_s": {1: 1.35, 2: 1.9}}

    def timed(_, candidates):
        return {one.name: StepTimes(1.0, draft_s=0.15 * one.shape.layers, **steps) for one in candidates}

    monkeypatch.setattr(asking, "measured_steps", lambda _, target, candidates, places: [timed(target, candidates)])
    monkeypatch.setattr(asking, "step_times", lambda found: found)
    return tmp_path


def choose(*words) -> int:
    return widedraft.main(["choose", "recipe.yaml", "--budget", FILE, *map(str, words)])


def test_a_file_is_read_as_it_was_written(here):
    found = read_trainings(here / FILE)
    write_trainings(found, here / "again.json")
    assert read_trainings(here / "again.json") == found
    assert found.lookaheads == range(1, 3)


def test_every_trained_shape_is_weighed_and_doubling_is_told(here, capsys):
    assert choose() == 0
    page = capsys.readouterr().out
    assert "By the law of 16 trainings in trainings.json: at most 200,000 answer tokens, 3 readings" in page
    assert "missed by 0.000 in the mean and by 0.000 at most" in page
    for name in ("1-layers-259-ids", "1-layers-262-ids", "2-layers-259-ids"):
        assert f"| {name} | 0." in page
    own = page.split("## What the recipe's own answers and readings make of them")[1]
    assert "| 1-layers-260-ids |" not in page
    assert "| 32,000 | 3 | " in own  # 32 answers of 1,000 tokens, read three times
    assert "## What doubling buys" not in own  # 260 ids are no candidate
    assert choose("--vocabularies", 260) == 0
    doubled = capsys.readouterr().out.split("## What doubling buys")[1]
    assert "| as the recipe has it | 32,000 | 3 | " in doubled
    assert "| twice the answers | 64,000 | 3 | " in doubled
    assert "| twice the readings | 32,000 | 6 | " in doubled


def test_what_lies_beyond_all_trainings_is_marked(here, capsys):
    assert choose("--layers", 2) == 0
    page = capsys.readouterr().out
    assert "* beyond the 200,000 answer tokens of any training" in page
    assert choose("--layers", 1) == 0
    assert "* beyond" not in capsys.readouterr().out


def test_within_minutes_a_mix_is_named(here, capsys):
    assert choose("--within", 40) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("In 40 minutes: 1-layers-2")
    assert said.endswith("at lookahead 1.")


def test_a_budget_that_cannot_be_met_is_refused_with_one_that_can(here, capsys):
    assert choose("--within", 0.5) == 2
    said = capsys.readouterr().err
    assert "--within 0.5: in so many minutes the fastest is 1-layers-2" in said
    assert "The first to break even is 1-layers-2" in said
    assert "minutes of a processor. Give more minutes." in said
    assert choose("--within", 1e-6) == 2
    assert "no answer is written" in capsys.readouterr().err


def test_shapes_that_never_pay_are_told(here, capsys, monkeypatch):
    hopeless = StepTimes(1.0, 2.0, 2.0, {1: 1.0, 2: 1.0})
    monkeypatch.setattr(
        asking, "measured_steps", lambda recipe, target, found, _: [dict.fromkeys(map(name_of, found), hopeless)]
    )
    assert choose() == 0
    page = capsys.readouterr().out
    assert "| none suffices | never |" in page
    assert choose("--within", 40) == 2
    assert "none of these shapes ever pays here" in capsys.readouterr().err


def name_of(one) -> str:
    return one.name


def test_what_the_law_says_nothing_of_is_refused(here, capsys):
    assert choose("--layers", 3) == 2
    assert "3-layers-259-ids: has 3 layers, and the trainings in trainings.json have 1 to 2" in capsys.readouterr().err
    assert choose("--vocabularies", "all") == 2
    assert "have 259 to 262; their law says nothing of others" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--within", "40"], "--within: is a number of minutes for --budget FILE"),
        (["--floors", "nvidia-h100-80gb-hbm3", "--within", "40"], "--within: is a number of minutes for --budget FILE"),
        (["--budget", FILE, "--out", "x.yaml"], "--out: --budget ranks mixes of tokens and writes no recipe"),
        (["--budget", "absent.json"], "absent.json"),
    ],
)
def test_words_that_do_not_go_together(here, capsys, words, said):
    assert widedraft.main(["choose", "recipe.yaml", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("word", ["soon", "0", "-1", "inf", "nan"])
def test_minutes_are_a_number(here, capsys, word):
    assert choose(f"--within={word}") == 2
    assert f"--within must be a number > 0 and <= 1000000, got {word}." in capsys.readouterr().err


def test_trainings_of_another_target_are_refused(here, capsys):
    found = read_trainings(here / FILE)
    write_trainings(replace(found, target="other"), here / FILE)
    assert choose() == 2
    assert "its trainings are of another target than" in capsys.readouterr().err


def test_files_of_too_few_trainings_or_none_are_refused(here, capsys):
    found = read_trainings(here / FILE)
    write_trainings(replace(found, trainings=found.trainings[:7]), here / FILE)
    assert choose() == 2
    assert "holds 7 trainings, and a law needs 8 at least" in capsys.readouterr().err
    spoilt = asdict(found)
    spoilt["trainings"][3]["taus"] = [0.5, 1.2]
    (here / FILE).write_text(json.dumps(spoilt))
    assert choose() == 2
    assert "trainings.3.taus.0" in capsys.readouterr().err

"""Every option of `choose` with every way to rank shapes: it works, or is refused with the reason, as the page says."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from distill.budget.record import write_trainings
from distill.choose.foretold import budget as by_budget
from distill.choose.shapes.settings import RANKED_BY, REFUSED
from distill.choose.trainings import rungs
from distill.choose.trainings.rungs import Cell
from eval.predictions.ranking import Ranked
from tests.distill.choose.asked import run_choose
from tests.distill.choose.foretold import trainings_of
from tests.eval.records import latency

PAGE = Path(__file__).parents[3] / "docs" / "choosing.md"
HEAD = "| option |"
WORDS = {  # of options in the table, where they need a value
    "--layers": (1, 2),
    "--vocabularies": (259,),
    "--hidden-sizes": ("all",),
    "--intermediate-sizes": (128,),
    "--heads": (4,),
    "--most-parameters": (10**9,),
    "--most-milliseconds": (50,),
    "--processes": (1,),
    "--widest": ("--most-parameters", 10**9),
    "--batch-sizes": (1, 4),
    "--contexts": (32, 64),
    "--longest": ("8ba",),
    "--out": ("mine.yaml",),
    "--within": (40,),
    "architecture.method=learned_masks": ("text={domains: [{name: wiki, path: wiki.txt}], max_seq_len: 64}",),
}
WAYS = {
    "--duration": ("2ba",),
    "--untrained": (),
    "--alphas": ("1=0.5",),
    "--budget": ("trainings.json",),
    "--floors": ("nvidia-h100-80gb-hbm3",),
}


def table() -> dict[str, dict[str, str]]:
    """What the page says of every option, by way."""
    lines = PAGE.read_text(encoding="utf-8").split(HEAD)[1].split("\n\n")[0].splitlines()
    ways = re.findall(r"`(--[\w-]+)", lines[0])
    found = {}
    for line in lines[2:]:
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for option in re.findall(r"`([^`]+)`", first):
            found[option] = dict(zip(ways, cells, strict=True))
    return found


TABLE = table()


@pytest.fixture
def here(tiny_target, tmp_path, monkeypatch):
    """A recipe, a file of trainings, step times that are written here, and trainings that take no time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"Say {i}."}) + "\n" for i in range(6)))
    (tmp_path / "wiki.txt").write_text("Once upon a time.")
    file = tmp_path / "recipe.yaml"
    file.write_text(
        f"run_name: tiny\ntarget: {{path: {tiny_target}, dtype: float32}}\n"
        "architecture: {method: first_last, layers: 1, vocabulary: {size: 259, from: answers}}\n"
        "data: {prompts: [{path: prompts.jsonl}], num_eval_prompts: 2}\n"
    )
    write_trainings(trainings_of(tiny_target), tmp_path / "trainings.json")

    def timed(_recipe, _target, candidates, places):
        times = {one.name: (4.0 * one.shape.layers,) * 2 for one in candidates}
        return [replace(latency(40.0, {1: 42.0, 2: 44.0}, times, 0.5), batch=each.batch) for each in places]

    monkeypatch.setattr("distill.choose.ranked.command.measured_steps", timed)
    monkeypatch.setattr(by_budget, "measured_steps", timed)
    monkeypatch.setattr(rungs, "prepare_answers", lambda _: None)
    monkeypatch.setattr(rungs, "train_candidates", lambda _run, found, *_: [each.name for each in found])
    monkeypatch.setattr(rungs, "score_candidates", lambda _run, drafts, _: drafts)
    monkeypatch.setattr(rungs, "ranked_cells", cells_of)
    return file


def cells_of(names, timed):
    ranked = tuple(Ranked(name, 1, 1.2, (1.1, 1.3), 9.0, 1.0) for name in names)
    return [Cell(0.0, each.batch, each.context_tokens, ranked) for each in timed or [latency(1.0, {1: 1.0}, {})]]


def asked(recipe_file, way, words):
    alphas = ("2=0.5",) if way == "--alphas" and "--layers" in words else ()
    return run_choose(recipe_file, *words, way, *WAYS[way], *alphas)


@pytest.mark.parametrize("option", TABLE)
@pytest.mark.parametrize("way", WAYS)
def test_the_table_of_the_page_is_what_happens(here, capsys, option, way):
    said = TABLE[option][way]
    words = (option, *WORDS.get(option, ()))
    code = asked(here, way, words)
    errors = capsys.readouterr().err
    assert (code, said.startswith("no")) in ((0, False), (2, True)), errors
    if code == 2:
        assert option == "--debug" or option.split("=")[0] in errors
        assert said.removeprefix("no: ") in errors


def test_the_page_names_every_option_that_is_refused_and_every_way():
    assert {flag for row in TABLE.values() for flag in row} == set(WAYS)
    assert {flag.removeprefix("--").replace("-", "_") for flag in WAYS} == set(RANKED_BY)
    refused = {(way, option) for way, options in REFUSED.items() for option in options}
    told = {
        (way.removeprefix("--"), option.removeprefix("--").replace("-", "_"))
        for option, row in TABLE.items()
        for way, said in row.items()
        if said.startswith("no") and option not in ("architecture.method=learned_masks", "--within", "--debug")
    }
    assert told == refused


def test_the_widest_of_what_is_asked(here, capsys):
    assert run_choose(here, "--untrained", "--widest") == 2
    assert "--widest: the widest that fits what? Give --most-parameters or" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "batches"), [(("--batch-sizes", 4, 1), [4, 1]), ((), [1])])
def test_what_was_trained_is_ranked_at_the_batches_asked_for(here, tmp_path, words, batches):
    """Of none, at that of the scorecards."""
    assert run_choose(here, "--layers", 1, 2, *words) == 0
    [found] = (tmp_path / "runs").glob("*/choose/choice.json")
    rung, *_ = json.loads(found.read_text())["rungs"]
    assert [cell["batch"] for cell in rung["cells"]] == batches

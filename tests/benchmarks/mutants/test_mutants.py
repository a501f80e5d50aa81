"""A mutant is the source with some lines replaced; what the tests said of it is told as what it is."""

from pathlib import Path

import pytest

from benchmarks.mutants.areas import AREAS, chosen_tests, naming
from benchmarks.mutants.mutant import Mutant, read_mutants, write_mutants
from benchmarks.mutants.page import page
from benchmarks.mutants.trying import Outcome
from benchmarks.mutants.verdicts import Tried, read_reasons, tried

ROOT = Path(__file__).parents[3]
MUTANT = Mutant("losses", "a.py", 2, "AddNot", ("    if a:",), ("    if not a:",))


def test_a_mutant_is_the_source_but_for_its_lines():
    assert MUTANT.source("def f(a):\n    if a:\n        g()\n") == "def f(a):\n    if not a:\n        g()\n"
    with pytest.raises(ValueError, match=r"a\.py:2: the source is not what the mutant was drawn from"):
        MUTANT.source("def f(b):\n    if b:\n        g()\n")


def test_mutants_are_read_as_they_were_written(tmp_path):
    write_mutants([MUTANT, MUTANT], tmp_path / "drawn.jsonl")
    assert read_mutants(tmp_path / "drawn.jsonl") == [MUTANT, MUTANT]


@pytest.mark.parametrize(
    ("code", "reason", "verdict"),
    [
        (0, None, "survived"),
        (0, "nobody calls it so", "equivalent"),
        (1, "nobody calls it so", "killed"),
        (-1, None, "killed"),
        (2, None, "unrunnable"),
        (4, None, "unrunnable"),
    ],
)
def test_verdicts(code, reason, verdict):
    assert tried(MUTANT, Outcome(code, "", 1.0, {}), reason).verdict == verdict


@pytest.mark.parametrize("area", AREAS)
def test_every_area_has_modules_and_tests_that_are_there(area):
    assert len(AREAS[area].modules()) > 3
    files = AREAS[area].test_files()
    assert len(files) > 3
    assert all((ROOT / file).is_file() for file in files)


def test_tests_of_the_room_come_first_and_then_those_that_import_the_file():
    tests = chosen_tests("rules", "eval/decoding/rules.py", {"tests/eval/decoding/test_rules.py": 2.0})
    importing = naming("eval.decoding.rules")
    assert "tests/eval/decoding/test_rules.py" in importing
    room = [test.startswith("tests/eval/decoding/") for test in tests]
    assert room == sorted(room, reverse=True)
    assert importing <= set(tests)


def test_reasons_are_of_words_that_the_source_has():
    for file, before, _ in read_reasons():
        lines = [line.strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
        assert before in lines or before in " ".join(lines), (file, before)


def test_the_page_counts_and_names_what_nothing_noticed():
    some = [Tried(MUTANT, "killed", "tests/a.py::b", 1.0), Tried(MUTANT, "survived", "", 1.0)]
    text = page([*some, Tried(MUTANT, "unrunnable", "", 1.0), Tried(MUTANT, "equivalent", "because", 1.0)])
    assert "| losses | 3 | 1 | 1 | 1 |" in text
    assert "| a.py:2 | `if a:` | `if not a:` | not known yet |" in text
    assert text.endswith("| because |")

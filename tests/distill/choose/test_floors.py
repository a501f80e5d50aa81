"""`choose --floors`: shapes are weighed on a device that is not at hand; nothing is timed, trained or written."""

from pathlib import Path

import pytest

import widedraft
from distill.choose.ranked import command

ROOT = Path(__file__).parents[3]
H100 = ("--floors", "nvidia-h100-80gb-hbm3")
WIDE = ROOT / "recipes" / "llama2-7b-wide-796m.yaml"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """An empty working folder, no network, and nothing that times or trains."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(command, "choose", lambda *_: pytest.fail("a run was begun"))
    return tmp_path


def choose(*words) -> int:
    return widedraft.main(["choose", *map(str, words)])


def rows_of(page: str, title: str) -> list[list[str]]:
    """The cells of the first table behind a title, without its first two lines."""
    lines = page.split(title, 1)[1].split("\n\n")
    [table, *_] = [part for part in lines if part.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_every_depth_and_head_is_weighed_and_nothing_is_written(elsewhere, capsys):
    """By hand: floors are bytes over 3,350 GB/s, 3.96 ms of LLaMA-7B; with launches the ratio is that of layers."""
    assert choose(WIDE, *H100, "--layers", 1, 5, "--vocabularies", 8192, "all") == 0
    page = capsys.readouterr().out
    assert list(elsewhere.iterdir()) == []
    assert "UNMEASURED: lower bounds of times" in page
    assert (
        "A step of the target takes 3.96 ms at least, a verification of 17 tokens 3.96 ms (3,350 GB/s published" in page
    )
    costs = rows_of(page, "## Least times of steps on NVIDIA H100 80GB HBM3: bfloat16, batch 1, 128 tokens of context")
    assert [(row[0], *row[5:]) for row in costs] == [
        ("1-layers-8192-ids", "0.141", "0.036", "0.031"),
        ("1-layers", "0.200", "0.050", "0.031"),
        ("5-layers-8192-ids", "0.627", "0.158", "0.156"),
        ("5-layers", "0.685", "0.173", "0.156"),
    ]


def test_costs_are_those_that_check_estimates(capsys):
    assert choose(WIDE, *H100, "--layers", 5) == 0
    [row] = rows_of(capsys.readouterr().out, "## Least times")
    assert widedraft.main(["check", str(WIDE), "--device", H100[1]]) == 0
    told = capsys.readouterr().out
    assert f"{row[3]} h (on 8 devices" in told
    assert row[3:5] == ["7.0", "43.8 GiB"]
    assert f"{row[4]} " in told


def test_at_equal_acceptance_the_cheapest_step_wins_and_the_others_must_bring_more(capsys):
    assert choose(WIDE, *H100, "--layers", 1, 5, "--vocabularies", 8192, "all") == 0
    floor, eager = capsys.readouterr().out.split("## With kernels ")[1:]
    assert "At equal acceptance 1-layers-8192-ids is the fastest." in floor
    assert "At equal acceptance 1-layers is the fastest." in eager  # the small head costs words and saves nothing
    others = rows_of(floor, "At equal")
    assert [row[0] for row in others] == ["1-layers", "5-layers-8192-ids", "5-layers"]
    assert others[2][1:] == ["0.71 (+0.21)", "0.81 (+0.21)", "0.89 (+0.19)", "0.96 (+0.16)"]
    assert ["1-layers-8192-ids", "94.7%", "95.3%", "95.8%", "96.6%"] in rows_of(floor, "A small head pays")
    assert ["5-layers-8192-ids", "96.1%", "96.7%", "97.2%", "97.7%"] in rows_of(floor, "A small head pays")
    assert ["1-layers-8192-ids", "100.0%", "100.0%", "100.0%", "100.0%"] in rows_of(eager, "A small head pays")
    assert ["a layer more", "0.54 (+0.04)", "0.64 (+0.04)", "0.74 (+0.04)", "0.84 (+0.04)"] in rows_of(floor, "own 5 ×")


def test_break_even_and_best_lookahead_of_every_candidate(capsys):
    assert choose(WIDE, *H100, "--layers", 5) == 0
    page = capsys.readouterr().out
    assert "At equal acceptance" not in page  # of one candidate
    found = rows_of(page, "## With kernels that cost nothing")
    assert found == [["5-layers", "0.17", "0.27", "0.42", "0.58", "2: 1.30x", "2: 1.46x", "3: 1.67x", "4: 1.99x"]]


def test_the_recipes_own_depth_is_among_the_usual_ones(capsys):
    assert choose(WIDE, *H100) == 0
    names = [row[0] for row in rows_of(capsys.readouterr().out, "## Least times")]
    assert names == [f"{depth}-layers" for depth in (1, 2, 3, 4, 5, 6, 8, 12)]


def test_a_head_that_is_plainly_too_large_and_lookaheads_that_are_missed_are_named(capsys):
    qwen = ROOT / "recipes" / "qwen2.5-7b-wide.yaml"
    assert choose(qwen, *H100, "architecture.vocabulary=null", "eval.lookaheads=[1,2,3]", "--layers", 5) == 0
    page = capsys.readouterr().out
    assert "says all 152,064 ids. Where floors decide, one of 32,768 is as fast with 90% of the acceptance" in page
    assert "set architecture.vocabulary={size: 32768} unless an engine needs the whole head" in page
    assert "Beyond eval.lookaheads, which are 1 to 3: 4 at α 0.8. Set eval.lookaheads=[1, 2, 3, 4]." in page
    assert choose(qwen, *H100, "--layers", 5) == 0
    page = capsys.readouterr().out
    assert "unless an engine" not in page
    assert "Beyond" not in page


def test_a_draft_of_another_model_has_its_depths_and_widths(capsys):
    assert choose(ROOT / "recipes" / "llama3.1-8b-wide-829m.yaml", *H100, "--layers", 15) == 0
    page = capsys.readouterr().out
    assert "| 15-layers | 15 × 2048 |" in page
    assert choose(ROOT / "recipes" / "llama3.1-8b-wide-829m.yaml", *H100, "--layers", 17) == 2


def test_a_file_of_a_measured_processor_has_one_way(capsys):
    file = ROOT / "benchmarks" / "results" / "devices" / "amd-epyc-2-cores.json"
    assert choose(WIDE, "--floors", file, "--layers", 5) == 0
    page = capsys.readouterr().out
    assert "43 GB/s measured" in page
    assert page.count("## With kernels") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "mine.yaml"), "--out: --floors trains, reads and writes nothing that it goes with. Leave it out."),
        (("--trust-checkpoints",), "--trust-checkpoints: --floors trains, reads and writes nothing"),
        (("--rehash",), "--rehash: --floors trains, reads and writes nothing"),
        (("--vocabularies", 32000), "--vocabularies 32000: the target has 32000 token ids"),
        (("--layers", 33), "exceeds the target in layers 33"),
        (("--most-parameters", 1), "--most-parameters 1: the smallest candidate, 1-layers, has"),
    ],
)
def test_what_does_not_go_with_floors_is_refused(words, message, capsys):
    assert choose(WIDE, *H100, *words) == 2
    assert message in capsys.readouterr().err


def test_a_device_that_nobody_knows_is_refused(capsys):
    assert choose(WIDE, "--floors", "nvidia-b200") == 2
    assert "nvidia-b200: is no device that anything is known of" in capsys.readouterr().err


@pytest.mark.parametrize("other", [("--untrained",), ("--alphas", "5=0.6"), ("--duration", "9ba")])
def test_it_stands_in_the_place_of_acceptance_that_is_known_or_trained_for(other, capsys):
    assert choose(WIDE, *H100, *other) == 2
    assert "shapes are chosen by one of them. Leave the others out." in capsys.readouterr().err

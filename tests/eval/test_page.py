"""The page says what the record says: each table's cells are read back and compared with it."""

import copy

import pytest

from eval.config import EvalConfig
from eval.scorecard import score_drafts
from eval.scorecard.page import rate, scorecard_page, table
from eval.tasks import Prompt

PROMPTS = [Prompt(f"p.jsonl:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(("why", "2+2?"), 1)]
CONFIG = EvalConfig(
    max_new_tokens=12, lookahead=(1, 3), batch_size=2, num_resamples=50, num_threads=1, latency_repeats=3
)


@pytest.fixture(scope="module")
def scored(target_folder, noisy_folder, tiny_draft, tmp_path_factory):
    drafts = {"undistilled": tiny_draft, "draft": noisy_folder}
    return score_drafts(target_folder, drafts, PROMPTS, CONFIG, tmp_path_factory.mktemp("page"), seed=17)


@pytest.fixture
def record(scored):
    """A scorecard whose speed-ups, which this machine decides, are round numbers that differ."""
    scorecard = copy.deepcopy(scored)
    scorecard["live"]["speedup"] = {"value": 1.25, "interval": [1.125, 1.5]}
    scorecard["live"]["decoding_speedup"] = {"value": 2.5, "interval": [2.25, 2.75]}
    for row in scorecard["speedup"]:
        row["best_lookahead"] = 2
    return scorecard


def sections(record):
    """Heading -> the paragraphs below it."""
    found, paragraphs = {}, []
    for paragraph in scorecard_page(record).rstrip("\n").split("\n\n"):
        if paragraph.startswith("#"):
            paragraphs = found[paragraph.lstrip("# ")] = []
        else:
            paragraphs.append(paragraph)
    return found


def rows(paragraph):
    """The rows of a table, its columns and the rule below them left out."""
    return [line.strip("| ").split(" | ") for line in paragraph.splitlines()[2:]]


def test_the_page_is_about_the_last_draft(record):
    page = scorecard_page(record)
    assert page.startswith(f"# Scorecard of {record['drafts'][1]['path']}\n")
    assert [title for title in sections(record) if title.startswith("By position")] == [
        "By position: draft, temperature 0, lookahead 3",
        "By position: draft, temperature 1, lookahead 3",
    ]


def test_models_stand_in_their_order(record):
    assert [(row[0], row[2], row[4]) for row in rows(sections(record)["Models"][0])] == [
        ("target", "4", f"{record['target']['parameters']:,}"),
        ("undistilled", "2", f"{record['drafts'][0]['parameters']:,}"),
        ("draft", "4", f"{record['drafts'][1]['parameters']:,}"),
    ]


def test_rates_by_position_stand_beside_their_counts(record):
    [entry] = [row for row in record["acceptance"] if (row["draft"], row["temperature"]) == ("draft", 1.0)]
    expected = [
        [
            str(p["position"]),
            f"{p['unconditional']:.3f} ({p['accepted']:.1f} / {p['possible']:.1f})",
            f"{p['conditional']:.3f} ({p['accepted']:.1f} / {p['reached']:.1f})",
        ]
        for p in entry["lookahead"][-1]["positions"]
    ]
    assert rows(sections(record)["By position: draft, temperature 1, lookahead 3"][0]) == expected
    assert len(expected) == 3


def test_gains_in_tau_are_told_at_the_best_lookahead(record):
    cells = rows(sections(record)["Paired differences, same prompts and answers"][0])
    assert [cell[0] for cell in cells] == ["draft - undistilled"] * 2
    for cell, difference in zip(cells, record["differences"], strict=True):
        tau = difference["lookahead"][1]["tau"]
        assert cell[3].startswith(f"{tau['value']:.3f} [")
        assert cell[3].endswith("] at lookahead 2")


def test_every_step_is_named_with_its_tokens(record):
    latency = record["latency"]
    title = f"Step times at batch 1, {latency['context_tokens']} tokens of context, 3 repetitions"
    names = ["target, 1 token", *(f"target, {n} tokens (verify)" for n in (2, 3, 4))]
    names += [f"{draft}, {tokens}" for draft in ("undistilled", "draft") for tokens in ("1 token", "2 tokens")]
    cells = rows(sections(record)[title][0])
    assert [cell[0] for cell in cells] == names
    steps = [latency["target"], *latency["verify"]]
    steps += [row[key] for row in latency["drafts"] for key in ("one_token", "two_tokens")]
    assert [(cell[1].split()[0], *cell[2:]) for cell in cells] == [
        tuple(f"{step[key]:.2f}" for key in ("median_ms", "p10_ms", "p90_ms")) for step in steps
    ]


def test_live_decoding_is_told_with_and_without_the_draft(record):
    live = record["live"]
    title = f"Live decoding of 2 prompts at batch 1, temperature 0, lookahead {live['lookahead']}"
    spent, words, _ = sections(record)[title]
    assert [(row[0], row[3]) for row in rows(spent)] == [
        ("target alone", f"{live['plain']['decode_s']:.2f}"),
        ("with draft", f"{live['speculative']['decode_s']:.2f}"),
    ]
    assert words.startswith("Speed-up 1.25x [1.12, 1.50] with the reading of the prompt, 2.50x [2.25, 2.75] without it")


def test_the_method_is_told_in_numbers(record):
    [facts] = sections(record)["How it was measured"]
    assert "Prompts: 2 given, 2 taken, 0 of them longer than 1024 tokens and left out, 2 scored." in facts
    assert "Answers: at most 12 tokens, written by the target in batches of 2; seed 17." in facts
    assert "Intervals: 95 % percentile bootstrap over prompts, 50 resamples." in facts


def test_a_bar_in_a_cell_does_not_end_it():
    assert table(("name",), [("a|b",)]).splitlines()[2] == r"| a\|b |"


def test_a_rate_of_nothing_is_none():
    assert rate(0.0, 0.0, None) == "none (0.0 / 0.0)"

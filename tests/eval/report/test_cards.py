"""A file that no report can be made of is refused: which, why, and what to do."""

import re
import shutil

import pytest

import widedraft
from architectures.errors import UserError
from eval.pages.drawing import Drawing
from eval.report import page
from eval.report_inputs.cards import card_path, read_cards

POLICY = {
    "temperature": 0.0,
    "tuned_on": 2,
    "lookahead": 1,
    "policy": {"lookahead": 2, "least": 0.5, "prior": [0.5], "weight": 2.0, "confidence": 0.0},
    "predicted": 1.25,
    "tau": 1.5,
    "lookup": {"lookahead": 1, "predicted": 1.125, "tau": 1.25},
}


def refusal(*runs):
    with pytest.raises(UserError) as refused:
        read_cards(runs)
    return str(refused.value)


def test_a_run_its_scorecard_s_folder_and_the_file_are_one(runs):
    path = runs / "deep" / "eval" / "scorecard.json"
    for named in (runs / "deep", runs / "deep" / "eval", path):
        assert card_path(named) == path


def test_a_missing_scorecard(tmp_path):
    assert refusal(tmp_path).startswith(f"{tmp_path}: no scorecard.json there, nor in a folder eval of it.")
    assert refusal(tmp_path / "none.json").startswith(f"{tmp_path / 'none.json'}: no scorecard.json there")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "schema must be widedraft.scorecard/3, got none. Name a scorecard.json that `widedraft eval` of this"),
        ('{"score": 3}', "schema must be widedraft.scorecard/3, got none."),
        ('{"schema": "mine/4"}', "got 'mine/4'. Name a scorecard.json"),
        ('{"schema": "widedraft.scorecard/1"}', "It is of an older version: take its folder away and run"),
        ('{"schema": "widedraft.recorded/1"}', "It is of recorded answers, without a target"),
    ],
)
def test_a_foreign_scorecard(tmp_path, text, told):
    path = tmp_path / "scorecard.json"
    path.write_text(text)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert told in message


def test_scorecards_of_two_targets(runs, rewrite):
    rewrite("shallow", lambda record: record["target"].update(path="other", fingerprint="f" * 64))
    for name in ("rounds.jsonl", "examples.json"):
        (runs / "shallow" / "eval" / name).unlink()
    message = refusal(runs / "deep", runs / "shallow")
    assert message.startswith(
        f"{runs / 'shallow' / 'eval' / 'scorecard.json'}: its target is other (ffffffffffff), that of"
    )
    assert "Drafts of different targets need a report each." in message


def test_a_run_named_twice(runs):
    message = refusal(runs / "deep", runs / "shallow", runs / "deep" / "eval")
    assert "scorecard.json: is named 2 times." in message


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            lambda record: record["target"].update(layers=True),
            "target.layers: Input should be a valid integer, got True",
        ),
        (lambda record: record["live"]["speedup"].update(interval=[1]), "live.speedup.interval.1: Field required"),
        (
            lambda record: record["live"]["speedup"].update(value="1"),
            "live.speedup.value: Input should be a valid number",
        ),
        (lambda record: record["live"]["speedup"].update(value=None), "live.speedup.value: Input should be a valid"),
        (
            lambda record: record["latency"].update(repeats=float("nan")),
            "latency.repeats: Input should be a valid integer",
        ),
        (lambda record: record["latency"]["target"].pop("p90_ms"), "latency.target.p90_ms: Field required"),
        (lambda record: record.update(drafts=[]), "drafts: Tuple should have at least 1 item"),
        (lambda record: record["drafts"][1].update(path=3), "drafts.1.path: Input should be a valid string, got 3"),
        (
            lambda record: record["acceptance"][2]["by_prompt"].update(tokens=[1, None]),
            "acceptance.2.by_prompt.tokens.1: Input should be a valid number, got None",
        ),
    ],
)
def test_a_damaged_field_is_named(runs, rewrite, edit, told):
    rewrite("deep", edit)
    message = refusal(runs / "deep")
    assert told in message
    assert message.startswith(str(runs / "deep" / "eval" / "scorecard.json"))
    assert "The file is damaged" in message


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda record: record["drafts"][0].update(draft="draft"), "drafts must be ['draft'], "),
        (lambda record: record["latency"]["drafts"].pop(), "drafts of latency must be ['draft', 'undistilled'], "),
        (lambda record: record["acceptance"].pop(), "drafts and temperatures of acceptance must be [('draft', 0.0), "),
        (lambda record: record["speedup"].pop(), "drafts and temperatures of speedup must be [('draft', 0.0), "),
        (
            lambda record: record["live"].update(draft="undistilled"),
            "draft of live must be ['draft']",
        ),
        (
            lambda record: record.update(policies=[{**POLICY, "temperature": 0.5}]),
            "temperatures of policies must be [0.0, 1.0], as the rest of the file has it, got [0.5]",
        ),
        (lambda record: record["latency"]["verify"].pop(), "lookaheads of acceptance[0] must be [1, 2], "),
        (lambda record: record["speedup"][1]["lookahead"].pop(), "lookaheads of speedup[1] must be [1, 2, 3], "),
        (
            lambda record: record["differences"][1]["lookahead"].pop(),
            "lookaheads of differences[1] must be [1, 2, 3], ",
        ),
        (
            lambda record: record["acceptance"][0]["bins"][0]["bins"][0]["lookahead"].pop(),
            "lookaheads of acceptance[0], arithmetic must be [1, 2, 3], ",
        ),
        (
            lambda record: record["acceptance"][3]["by_prompt"]["rounds"].pop(),
            "lookaheads of acceptance[3].by_prompt must be [1, 2, 3], as the rest of the file has it, got [1, 2]",
        ),
        (
            lambda record: record["acceptance"][3]["by_prompt"]["alpha"].pop(),
            "acceptance.3.by_prompt: Value error, numbers of prompts must be [5], as the rest of the file has it",
        ),
        (lambda record: record["speedup"][0].update(best_lookahead=7), "that were not scored must be [], as the rest"),
        (lambda record: record["live"].update(lookahead=7), "that were not scored must be [], as the rest"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_named(runs, rewrite, edit, told):
    rewrite("deep", edit)
    message = refusal(runs / "deep")
    assert message.startswith(str(runs / "deep" / "eval" / "scorecard.json"))
    assert told in message


@pytest.mark.parametrize("name", ["rounds.jsonl", "examples.json"])
def test_files_of_another_scoring_are_refused(runs, name):
    shutil.copy(runs / "shallow" / "eval" / name, runs / "deep" / "eval" / name)
    message = refusal(runs / "deep")
    assert message.startswith(f"{runs / 'deep' / 'eval' / name}: is of the draft ")
    assert "They are of two scorings" in message


def test_rounds_of_another_number_are_refused(runs, rewrite):
    rewrite("deep", lambda record: record["live"]["agreement"]["loop"].update(rounds=1.0))
    message = refusal(runs / "deep")
    assert re.search(
        r"rounds.jsonl: holds \d+ rounds, but .*scorecard.json counted 1\. They are of two scorings", message
    )


def test_files_of_an_earlier_scoring_do_not_matter_where_nothing_was_decoded(runs, rewrite):
    rewrite("deep", lambda record: record.update(live=None))
    [card] = read_cards([runs / "deep"])
    assert (card.rounds, card.examples) == (None, None)


def test_the_command_writes_beside_the_scorecard_or_where_it_is_told(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert widedraft.main(["report", str(runs / "deep")]) == 0
    assert (runs / "deep" / "eval" / "report.html").is_file()
    assert (
        capsys.readouterr().out
        == f"{runs / 'deep' / 'eval' / 'report.html'}: open it in a browser; 8 plots beside it\n"
    )
    monkeypatch.setattr(page, "render", lambda _: Drawing("0 0 1 1", "", b""))  # plots take seconds
    assert widedraft.main(["report", str(runs / "deep"), str(runs / "shallow")]) == 0
    assert (tmp_path / "report.html").is_file()
    assert widedraft.main(["report", str(runs / "deep"), "--out", "x/y.html"]) == 0
    assert (tmp_path / "x" / "y.html").is_file()
    assert (tmp_path / "x" / "y-tau-t0.png").is_file()


def test_the_command_refuses_in_one_message(tmp_path, capsys):
    assert widedraft.main(["report", str(tmp_path)]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith(f"{tmp_path}: no scorecard.json there")


@pytest.mark.parametrize("name", ["page", "page.md", "folder.html"])
def test_a_page_is_written_over_no_other_file(runs, tmp_path, capsys, name):
    (tmp_path / "folder.html").mkdir()
    assert widedraft.main(["report", str(runs / "deep"), "--out", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.startswith(f"--out {tmp_path / name}: must name a file that ends in .html.")


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: record["acceptance"][1].update(coverage=None),
        lambda record: record["acceptance"][1]["by_prompt"].update(sayable=None),
        lambda record: record["acceptance"][1]["bins"][0]["bins"][0].update(coverage=None),
        lambda record: record["drafts"][1].pop("head_vocab_size"),
    ],
)
def test_coverage_is_there_for_every_figure_of_a_small_head_and_for_no_other(runs, rewrite, edit):
    read_cards([runs / "small"])
    rewrite("small", edit)
    assert "whether figures of acceptance[1] have a coverage must be [" in refusal(runs / "small")

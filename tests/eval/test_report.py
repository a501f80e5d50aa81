"""The report of tiny drafts of one target, read back from its HTML."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import widedraft
from eval.acceptance_rates import responses_folder
from eval.config import EvalConfig
from eval.prompts import Prompt
from eval.recorded import read_recorded_traces, score_recording
from eval.report import read_runs, write_page, write_report
from eval.scorecard import score_drafts
from eval.scorecard_schema import RuleRow, write_record
from eval.scorecard_tables import (
    between_runs,
    decoding,
    differences,
    find_warnings,
    interval,
    results,
    scored_drafts,
)
from tests.eval.records import acceptance, engine_benchmark, latency, live, scorecard, speedup
from tests.eval.records import changed as with_values
from tests.rejections import rejects

CONFIG = EvalConfig(
    max_new_tokens=12,
    num_speculative_tokens=(1, 2),
    batch_size=4,
    latency_repeats=1,
    latency_batch_sizes=(1,),
    wall_clock_prompts=3,
)
ASKED = (
    ("p.jsonl:1", "<script>alert('why')</script>", "odd"),
    ("p.jsonl:2", "how many", None),
    ("q.jsonl:1", "say hello", "odd"),
)
PROMPTS = [Prompt(source, ({"role": "user", "content": text},), category=category) for source, text, category in ASKED]


@pytest.fixture(scope="session")
def scored(target_folder, noisy_folder, tiny_draft, tmp_path_factory):
    """Runs of one target: `noisy` with `tiny` as its baseline, and `tiny` alone; not to be changed."""
    runs = tmp_path_factory.mktemp("runs")
    for name, models in (
        ("noisy", {"undistilled": tiny_draft, "draft": noisy_folder}),
        ("tiny", {"draft": tiny_draft}),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("eval.scorecard.CONFIDENCE", 0.75)  # three prompts are enough for an interval
            score_drafts(target_folder, models, PROMPTS, CONFIG, runs / name / "eval", seed=17)
    return runs


@pytest.fixture(scope="session")
def recorded(scored, noisy_folder, tmp_path_factory):
    """A scorecard of recorded responses."""
    out = tmp_path_factory.mktemp("recorded")
    score_recording(
        read_recorded_traces(responses_folder(scored / "noisy" / "eval", 0.0), noisy_folder),
        noisy_folder,
        CONFIG,
        out,
        seed=17,
    )
    return out


class Page(HTMLParser):
    """Tags and attributes of a page, and the rows of its tables."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = path.read_text()
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.tags[-1][0] in ("td", "th"):
            self.rows[-1][-1] += data.strip()


@pytest.fixture(scope="session")
def page(scored, tmp_path_factory):
    """Both runs side by side."""
    return Page(write_report([scored / "noisy", scored / "tiny"], tmp_path_factory.mktemp("page") / "report.html"))


def test_the_page_opens_offline_and_prompts_stay_text(page):
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe"}
    assert all(str(each["src"]).startswith("data:image/svg+xml;base64,") for tag, each in page.tags if tag == "img")
    assert not re.search(r"(href|src)=\"(?!data:)", page.text)
    assert "&lt;script&gt;alert" in page.text


def test_results_of_all_runs_stand_in_one_table(page, scored):
    runs = read_runs([scored / "noisy", scored / "tiny"])
    for run in runs:
        for row in run.card.acceptance:
            if row.draft == run.card.primary:
                cells = [run.name, f"{row.temperature:g}", row.rule, interval(row.alpha)]
                assert cells in [found[:4] for found in page.rows]
        live = run.card.live
        speed = interval(live.speedup, 2, "x")
        assert any(found[0] == f"{run.name}: draft" and found[-1] == speed for found in page.rows)


def test_the_difference_between_runs_is_the_one_within_a_scorecard(scored):
    """The baseline of `noisy` is the draft of `tiny`, on the same responses."""
    noisy, tiny = (run.card for run in read_runs([scored / "noisy", scored / "tiny"]))
    [within] = differences({"noisy": noisy}).rows[:1]
    [between] = between_runs("tiny", "noisy", tiny, noisy)[:1]
    assert between[1:] == within[1:]


def test_benchmarks_in_engines_come_first(scored, tmp_path):
    run = Path(shutil.copytree(scored / "tiny", tmp_path / "tiny"))
    target = read_runs([run])[0].card.target.fingerprint
    (run / "draft").mkdir()
    write_record(engine_benchmark(target, "d"), run / "draft" / "benchmark-vllm.json")
    write_record(engine_benchmark("another", "d"), run / "benchmark.json")
    with rejects("benchmark.json"):
        read_runs([run])
    write_record(engine_benchmark("another", "d", engine=""), run / "benchmark.json")  # our own loop
    page = Page(write_report([run], tmp_path / "report.html"))
    assert page.rows[0][:5] == ["engine", "concurrency", "method", "k", "tokens/s"]
    assert page.rows[1] == [
        *("vllm 0.32.0", "8", "draft /home/me/drafts/own", "3", "61.2", "1.53x [1.41, 1.66]"),
        *("12", "3.4", "2.00: 0.60 0.30 0.10"),
    ]
    assert len([row for row in page.rows if "61.2" in row]) == 1


def test_recorded_responses_have_a_report_without_speeds(recorded, tmp_path):
    page = Page(write_report([recorded], tmp_path / "report.html"))
    record = json.loads((recorded / "scorecard.json").read_text())
    [row, *_] = record["acceptance"]
    shown = [found for found in page.rows if found[2:3] == [row["rule"]]]
    assert f"{row['accept_rate']['value']:.3f}" in shown[0][3]
    assert "predicted" not in page.text.split("</style>")[1].split("<section>", 1)[1]


def test_names_that_matplotlib_and_html_read_otherwise_stay_names(scored, tmp_path):
    [run] = read_runs([scored / "tiny"])
    renamed = [replace(run, name=name, path=tmp_path / name) for name in ("_a$b$", "<b>x</b>")]
    assert "<b>x" not in write_page(renamed, tmp_path / "report.html").read_text()


def test_a_missing_file_another_target_and_a_run_named_twice_are_errors(scored, recorded, tmp_path):
    with rejects(tmp_path):
        read_runs([tmp_path])
    with rejects("tiny"):
        read_runs([scored / "tiny", scored / "tiny" / "eval"])
    with rejects("recorded"):
        read_runs([scored / "tiny", recorded])
    other = shutil.copytree(scored / "tiny", tmp_path / "other") / "eval" / "scorecard.json"
    record = json.loads(other.read_text())
    record["target"]["fingerprint"] = "0" * 64
    other.write_text(json.dumps(record))
    with rejects("target"):
        read_runs([scored / "tiny", other])


def test_the_command_writes_the_page_next_to_the_scorecard(scored, tmp_path, monkeypatch, capsys):
    run = shutil.copytree(scored / "tiny", tmp_path / "tiny")
    assert widedraft.main(["report", str(run)]) == 0
    assert (run / "eval" / "report.html").is_file()
    monkeypatch.chdir(tmp_path)
    assert widedraft.main(["report", str(run), str(scored / "noisy")]) == 0
    assert Path("report.html").is_file()
    assert widedraft.main(["report", str(run), "--out", "page.txt"]) == 2
    assert "page.txt" in capsys.readouterr().err


STEP_MS = 20.0


@pytest.fixture
def card():
    """A sound scorecard: plain decoding is as fast as its timed step."""
    rows = [acceptance("draft", temperature, {3: (2,) * 6}, (4,) * 6) for temperature in (0.0, 1.0)]
    shared = {name: getattr(rows[1], name) for name in RuleRow.model_fields if name != "rule"}
    rows[1] = with_values(rows[1], other_rules=tuple(RuleRow(rule=rule, **shared) for rule in ("second", "third")))
    speedups = [speedup("draft", row.temperature, 1.5, 3, (3,)) for row in rows]
    steps = latency(STEP_MS, {3: 22.0}, {"draft": (4.0, 5.0)})
    return scorecard(rows, steps, speedups, live=with_values(live(), plain__ms_per_token=STEP_MS))


def test_every_acceptance_method_has_its_row(card):
    table = results(scored_drafts({"run": card}))
    expected = [method.rule for row in card.acceptance for method in (row, *row.other_rules)]
    assert len(expected) == 4
    assert sorted(row[2] for row in table.rows) == sorted(expected)


def test_the_result_has_a_row_per_way_of_decoding(card):
    table = decoding(scored_drafts({"run": card}))
    assert [row[0] for row in table.rows] == ["target alone", *(way.way for way in card.live.ways), "draft"]
    draft = dict(zip(table.columns, table.rows[-1], strict=True))
    spent = card.live.speculative
    assert float(draft["tokens/s"]) == pytest.approx(spent.tokens / (spent.prefill_s + spent.decode_s), abs=0.05)
    assert draft["acceptance rate"] == interval(card.acceptance[0].alpha)
    assert draft["speedup"] == interval(card.live.speedup, 2, "x")


def test_a_sound_scorecard_warns_of_nothing(card):
    assert find_warnings(card) == []


def test_disagreement_of_decoding_and_replay_is_a_fault_in_float32_and_rounding_otherwise(card):
    wrong = with_values(card, lives__0__agreement__exact=False)
    [warning] = find_warnings(wrong)
    assert "report it" in warning
    [warning] = find_warnings(with_values(wrong, settings__dtype="bfloat16"))
    assert "bfloat16" in warning


@pytest.mark.parametrize(
    "change",
    [{"latency__settled": False}, {"lives__0__plain__ms_per_token": 3 * STEP_MS + 2}, {"prompts__scored": 1}],
)
def test_unsettled_steps_disturbed_decoding_and_few_prompts_are_warned_of(card, change):
    [warning] = find_warnings(with_values(card, **change))
    assert len(warning) <= 120

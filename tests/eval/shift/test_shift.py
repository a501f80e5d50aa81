"""Records of several drafts over one stream: read, averaged, compared, by source and by token."""

import json
import xml.dom.minidom
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

import widedraft
from architectures.errors import UserError
from eval.acceptance.estimates import Resampling, paired_ratio_difference
from eval.records.request import SCHEMA, RequestRecord
from eval.shift.curves import alpha_columns, curve, ending, endings, last_part, stretches, tau_columns
from eval.shift.plots import stream_figures
from eval.shift.reading import Arm, name_of, read_arms, read_requests
from eval.shift.tokens import TokenScore, answer_ids, commonest, pooled, proposed_ids, token_scores

RESAMPLING = Resampling(0.95, 200, 1)


def record(number, source="a", *, alpha=0.5, answer=(1, 2, 3), proposals=((1, 9), (3, 3)), kept=(1, 1)):
    """A request answered in two rounds, if nothing else is said."""
    return RequestRecord(
        request=number,
        source=source,
        updates=0,
        alpha=alpha,
        tau=len(answer) / len(kept),
        tokens=len(answer),
        rounds=len(kept),
        proposed=sum(map(len, proposals)),
        accepted=sum(kept),
        seconds=None,
        wait_s=None,
        answer_ids=tuple(answer),
        proposals=tuple(proposals),
        kept=tuple(kept),
    )


@pytest.fixture
def write(tmp_path):
    def written(name, records, header=None):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [*([] if header is None else [header]), *(each.to_json() for each in records)]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path

    return written


def test_records_are_read_in_order_with_and_without_a_first_line_that_tells_the_schema(write):
    records = [record(1), record(0)]
    assert read_requests(write("a.jsonl", records)) == (record(0), record(1))
    assert read_requests(write("b.jsonl", records, {"schema": SCHEMA, "seed": 17})) == (record(0), record(1))


@pytest.mark.parametrize(
    ("records", "header", "words"),
    [
        (
            [record(0)],
            {"schema": "widedraft.requests/2"},
            "schema must be widedraft.requests/1, got widedraft.requests/2",
        ),
        ([record(0)], {}, "schema must be widedraft.requests/1, got none"),
        ([], {"schema": SCHEMA}, "holds no request"),
        ([record(3), record(4), record(3)], None, "holds request 3 twice"),
        ([replace(record(0), alpha=1.5)], None, r"a.jsonl:1: alpha: .*got 1.5"),
        ([replace(record(0), tokens=4)], None, "a.jsonl:1: tokens must be those of answer_ids, got 4"),
        ([replace(record(0), kept=(1,))], None, "a.jsonl:1: kept must say of each round"),
        ([replace(record(0), kept=(1, 3))], None, "a.jsonl:1: kept must say of each round"),
        ([replace(record(0), kept=(1, -1))], None, "a.jsonl:1: kept must say of each round"),
    ],
)
def test_what_are_no_records_is_refused(write, records, header, words):
    with pytest.raises(UserError, match=words):
        read_requests(write("a.jsonl", records, header))


def test_arms_are_of_the_same_requests(write):
    first = write("static.jsonl", [record(0), record(1)])
    for others, words in (
        ([record(0)], "request 1 is absent here and of a there"),
        ([record(0), record(1), record(2)], "request 2 is of a here and absent there"),
        ([record(0), record(1, "b")], "request 1 is of b here and of a there"),
    ):
        with pytest.raises(UserError, match=words):
            read_arms([first, write("online.jsonl", others)])


def test_an_arm_is_called_as_its_run_or_file_or_as_is_said(write):
    path = write("tuned/online/records.jsonl", [record(0)])
    assert name_of(path) == "tuned"
    other = write("static.jsonl", [record(0)])
    assert [arm.name for arm in read_arms([other, path])] == ["static", "tuned"]
    assert [arm.name for arm in read_arms([other, path], ["a", "b"])] == ["a", "b"]
    for names in (["a"], ["a", "a"]):
        with pytest.raises(UserError, match="--names must name each of the 2 files once"):
            read_arms([other, path], names)


def test_a_mean_is_over_tokens_or_rounds():
    records = [record(0, alpha=0.2), record(1, alpha=0.5, answer=(1,) * 6, kept=(1,), proposals=((1, 1),))]
    alpha, tau = (curve(records, measure, 2, RESAMPLING)[0].mean for measure in (alpha_columns, tau_columns))
    assert alpha.value == pytest.approx((3 * 0.2 + 6 * 0.5) / 9)
    assert tau.value == pytest.approx(9 / 3)


def test_windows_overlap_by_half_and_end_with_the_stream():
    records = [record(number, alpha=number / 100) for number in range(11)]
    points = curve(records, alpha_columns, 4, RESAMPLING)
    assert [point.request for point in points] == [1.5, 3.5, 5.5, 7.5, 8.5]
    assert [point.mean.value for point in points] == pytest.approx([0.015, 0.035, 0.055, 0.075, 0.085])
    [whole] = curve(records, alpha_columns, 40, RESAMPLING)
    assert whole.mean.value == pytest.approx(0.05)


def test_stretches_are_requests_of_one_source_that_follow_each_other():
    parts = stretches([record(0, "a"), record(1, "a"), record(2, "b"), record(3, "a")])
    assert [[each.request for each in part] for part in parts] == [[0, 1], [2], [3]]


def test_the_last_part_of_each_source_is_compared_with_the_first_arm():
    static = Arm("static", tuple(record(n, "ab"[n % 2], alpha=0.1) for n in range(40)))
    online = Arm("online", tuple(replace(each, alpha=0.1 if each.request < 30 else 0.4) for each in static.records))
    rows = endings([static, online], 0.25, RESAMPLING)
    assert [(row.source, row.arm, row.requests) for row in rows] == [
        ("a", "static", 5), ("a", "online", 5), ("b", "static", 5), ("b", "online", 5),
    ]  # fmt: skip
    assert rows[0].alpha_gain is None
    assert [row.alpha_gain.value for row in rows if row.alpha_gain] == pytest.approx([0.3, 0.3])
    assert [row.tau_gain.value for row in rows if row.tau_gain] == pytest.approx([0, 0])
    assert [each.request for each in last_part(static.records, 0.001)] == [39]


def test_an_arm_that_is_the_first_one_again_gains_nothing_surely():
    arm = Arm("static", tuple(record(n, alpha=0.01 * n) for n in range(20)))
    [_, again] = endings([arm, Arm("again", arm.records)], 1.0, RESAMPLING)
    assert again.alpha_gain is not None
    assert (again.alpha_gain.value, again.alpha_gain.interval) == (0, (0, 0))
    assert ending("x", arm.records, None, RESAMPLING).alpha_gain is None


@pytest.mark.parametrize("requests", [25, 50])
def test_a_gain_that_is_none_is_called_one_as_seldom_as_is_said(requests):
    """Requests differ in difficulty and length; both arms are as good, and each is right by chance at every token."""
    rng, resampling, runs = np.random.default_rng(3), Resampling(0.95, 400, 1), 600
    wrong = 0
    for _ in range(runs):
        tokens_R, chance_R = rng.integers(20, 120, requests), rng.beta(4, 5, requests)
        arms = [(rng.binomial(tokens_R, chance_R).astype(float), tokens_R.astype(float)) for _ in range(2)]
        low, high = paired_ratio_difference(*arms, resampling).interval or (0, 0)
        wrong += low > 0 or high < 0
    assert 0.025 < wrong / runs < 0.075  # 5 % and 2.8 standard errors


def test_accepted_proposed_and_answered_tokens_are_counted():
    arm = Arm("a", (record(0), record(1, answer=(1, 1), proposals=((1, 2),), kept=(1,))))
    assert commonest(arm.records, 2) == [1, 2]  # three times; once, as 3, but lower
    assert token_scores(arm, [1, 3, 9, 7]) == [
        TokenScore(1, accepted=2, proposed=2, occurrences=3),
        TokenScore(3, accepted=1, proposed=2, occurrences=1),
        TokenScore(9, accepted=0, proposed=1, occurrences=0),
        TokenScore(7, accepted=0, proposed=0, occurrences=0),
    ]
    one, three, nine, seven = token_scores(arm, [1, 3, 9, 7])
    assert (one.precision, one.recall) == (1.0, pytest.approx(2 / 3))
    assert (three.precision, three.recall) == (0.5, 1.0)
    assert (nine.precision, nine.recall) == (0.0, None)
    assert (seven.precision, seven.recall) == (None, None)


def test_shares_of_all_common_tokens_are_pooled():
    arm = Arm("a", (record(0), record(1, answer=(1, 1), proposals=((1, 2),), kept=(1,))))
    precision, recall = (pooled(arm, [1, 3], below, RESAMPLING) for below in (proposed_ids, answer_ids))
    assert precision is not None
    assert recall is not None
    assert (precision.value, recall.value) == (pytest.approx(3 / 4), pytest.approx(3 / 4))
    assert pooled(arm, [77], proposed_ids, RESAMPLING) is None


def test_mixed_sources_have_plots_of_their_own_and_those_in_a_row_do_not():
    row = [Arm("a", tuple(record(n, "ab"[n // 20]) for n in range(40)))]
    mixed = [Arm("a", tuple(record(n, "ab"[n % 2]) for n in range(40)))]
    assert [figure.name for figure in stream_figures(row, 10, RESAMPLING)] == ["alpha", "tau"]
    assert [figure.name for figure in stream_figures(mixed, 10, RESAMPLING)] == [
        "alpha", "tau", "alpha-1", "tau-1", "alpha-2", "tau-2",
    ]  # fmt: skip


def test_no_line_of_a_plot_reaches_over_a_shift():
    arms = [Arm("a", tuple(record(n, "ab"[n // 20]) for n in range(40)))]
    figure = stream_figures(arms, 10, RESAMPLING)[0]
    axes = Canvas().add_subplot()
    figure.draw(axes)
    spans = [
        tuple(np.asarray(line.get_xdata())[[0, -1]]) for line in axes.lines if len(np.asarray(line.get_xdata())) > 2
    ]
    assert spans == [(4.5, 14.5), (24.5, 34.5)]
    assert [text.get_text() for text in axes.texts] == ["a", "b"]


def test_the_command_writes_a_page_and_plots(write, tmp_path, capsys, tiny_target):
    first = write("static.jsonl", [record(n, "ab"[n // 20], alpha=0.3) for n in range(40)])
    second = write("online.jsonl", [record(n, "ab"[n // 20], alpha=0.4, answer=(1, 2, 4)) for n in range(40)])
    command = ["shift", str(first), str(second), "--out", str(tmp_path / "out"), "--names", "Static", "Online"]
    assert widedraft.main([*command, "--tokenizer", str(tiny_target), "--window", "10", "--last-share", "0.5"]) == 0
    page = (tmp_path / "out" / "shift.md").read_text()
    assert "40 requests, answered by Static, Online." in page
    assert "**Warning:** 40 answers of Online differ from those of Static." in page
    assert "| a | Online | 10 | 0.400 [0.400, 0.400] | 0.100 [0.100, 0.100] | 1.500 [1.500, 1.500] |" in page
    assert "Each of these 2 gains in alpha is wrong by itself in 5% of cases." in page
    for name in ("alpha", "tau", "precision", "recall"):
        assert f"({name}.png)" in page
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 1000
        xml.dom.minidom.parse(str(tmp_path / "out" / f"{name}.svg"))
    assert "4 plots beside it" in capsys.readouterr().out


@pytest.mark.parametrize("proposals", [((), ()), ()], ids=["of nothing", "of replayed samples"])
def test_records_without_proposals_say_so(write, tmp_path, proposals):
    bare = [replace(record(n), proposals=proposals, kept=(0, 0)) for n in range(10)]
    assert widedraft.main(["shift", str(write("a.jsonl", bare)), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "shift.md").read_text()
    assert "Not measured: the records hold no proposals." in page
    assert "wrong by itself" not in page


def test_a_file_where_the_folder_should_be_is_refused(write, tmp_path, capsys):
    path = write("a.jsonl", [record(0)])
    assert widedraft.main(["shift", str(path), "--out", str(path)]) == 2
    assert "is no folder. Remove it, or name another folder with --out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_windows_of_one_request_are_a_window_each():
    points = curve([record(n) for n in range(4)], alpha_columns, 1, RESAMPLING)
    assert all(after.request - before.request == 1 for before, after in pairwise(points))
    assert len(points) == 4

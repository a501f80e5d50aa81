"""Plots name every series, whatever its name, and leave room for the bars beside long ones."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from matplotlib.figure import Figure as Canvas

from architectures.pages.blocks import Figure
from eval.acceptance.estimates import Estimate
from eval.pages.drawing import draw_curve, draw_measured, draw_parts, draw_points, draw_predicted, render
from eval.report.lookaheads import speed_figure, tau_figure
from eval.report.positions import positions_figure
from eval.report.round_time import PARTS, RoundTime, round_figure
from eval.report_inputs.cards import read_card
from eval.report_inputs.drafts import ScoredDraft
from tests.eval.report.edits import two_lookaheads_alone

LONG = "llama2-7b-wide-796m-forward-kl-temperature-2-learning-rate-3e-4-seed-17-of-the-second-sweep"


@pytest.mark.parametrize("name", ["_hidden", LONG, LONG.replace("-", "_")])
def test_every_series_has_its_name(name):
    """To matplotlib a name that begins with _ is none."""
    estimate = Estimate(1.0, (0.9, 1.1))

    def draw(axes):
        draw_points(axes, [1, 2], [estimate, estimate], 0, name)
        draw_measured(axes, 1, estimate, 1, f"{name}, measured")
        draw_predicted(axes, [1, 2], [1, 2], 2, f"{name}, predicted")
        draw_curve(axes, [1, 2], [2, 1], 3, f"{name}, independent")

    def draw_bars(axes):
        draw_parts(axes, [name], PARTS, [[1, 1, 1, 1]])

    for drawn, times in ((draw, 4), (draw_bars, 1)):
        body = render(Figure("f", "", "", drawn)).body
        assert re.sub(r"<[^>]*>|\s", "", body).count(name) == times
        lines = ET.fromstring(f'<svg xmlns:xlink="x">{body}</svg>').iter("text")
        assert max(len("".join(line.itertext())) for line in lines) <= 48


def test_a_long_legend_takes_no_room_from_the_plot():
    def drawn(names):
        def draw(axes):
            for place, name in enumerate(names):
                draw_curve(axes, [1, 2], [2, 1], place, name)

        return float(render(Figure("f", "", "", draw)).view_box.split()[3])

    two_lines = drawn(["a", "b", "c", "d"])  # in two columns
    assert drawn(["a"]) == two_lines
    for names, lines in ((["a", "b", "c", "d", "e", "f"], 3), (["four-words-" * 8, "b", "c"], 4)):
        assert drawn(names) - two_lines == pytest.approx((lines - 2) * 0.2 * 72, abs=0.1)


def test_bars_have_room_for_the_lines_of_their_names():
    time = RoundTime("short", 1.0, None, 1.0, None)
    short, long = (round_figure([replace(time, label=name)] * 3).height for name in ("short", "four-words-" * 8))
    assert long - short == pytest.approx(3 * 3 * 0.18)  # three bars, each with three lines more


def test_every_lookahead_has_a_tick_whichever_draft_comes_last(runs, rewrite):
    path = runs / "deep" / "eval" / "scorecard.json"
    card = read_card(path)
    rewrite("deep", two_lookaheads_alone)
    shorter = read_card(path)
    drafts = [ScoredDraft(one, "draft", name) for one, name in ((card, "all"), (shorter, "fewer"))]
    for figure in (positions_figure(drafts, 0.0), tau_figure(drafts, 0.0), speed_figure(drafts, 0.0)):
        axes = Canvas().add_subplot()
        figure.draw(axes)
        assert list(axes.get_xticks()) == [1, 2, 3]


def test_drafts_measured_at_one_lookahead_lie_beside_each_other(runs):
    card = read_card(runs / "deep" / "eval" / "scorecard.json")
    drafts = [ScoredDraft(card, "draft", name) for name in "abc"]
    axes = Canvas().add_subplot()
    speed_figure(drafts, 0.0).draw(axes)
    at = [line.get_xdata()[0] for line in axes.get_lines() if line.get_label().endswith("measured")]
    assert at == pytest.approx([card.record.live.lookahead + shift for shift in (-0.07, 0, 0.07)])

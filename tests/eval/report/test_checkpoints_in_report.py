"""Curves of checkpoints in a report: their rows, their plots, whose they are."""

import pytest

from architectures.errors import UserError
from architectures.pages.blocks import Figure
from eval.acceptance.estimates import Estimate
from eval.pages.drawing import render
from eval.report.training import training_section
from eval.report_inputs.cards import read_cards
from eval.training_curve.curves import SCHEMA, Curve, Curves, Point, write_curves

POINTS = (
    Point("undistilled", 0, 0, Estimate(0.1, (0.05, 0.2)), Estimate(1.1, (1.0, 1.2)), 0.8, Estimate(0.5, (0.3, 0.6))),
    Point("ep0-ba5", 5, 1200, Estimate(0.5, (0.4, 0.6)), Estimate(1.6, (1.5, 1.7)), 1.25, None),
)


@pytest.fixture
def beside(runs):
    """Write curves of both temperatures beside a scorecard, of its models or of others."""

    def write(name, **models):
        [card] = read_cards([runs / name])
        found = {"target": card.record.target.fingerprint, "draft": card.record.drafts[-1].fingerprint}
        curves = tuple(Curve(temperature, 3, "ep0-ba5", POINTS) for temperature in (0.0, 1.0))
        write_curves(Curves(SCHEMA, **(found | models), curves=curves), runs / name / "eval" / "checkpoints.json")

    return write


def test_every_checkpoint_has_a_row_and_the_best_is_named(beside, page_of):
    beside("deep")
    page = page_of("deep")
    rows = page.tables["deep, temperature 1, lookahead 3"]
    assert rows[1:] == [
        ["undistilled", "0", "0", "0.100 [0.050, 0.200]", "1.100 [1.000, 1.200]", "0.500 [0.300, 0.600]", "0.800x"],
        ["ep0-ba5 (best)", "5", "1,200", "0.500 [0.400, 0.600]", "1.600 [1.500, 1.700]", "–", "1.250x"],
    ]
    assert "Best at temperature 1: ep0-ba5; every other is behind it." in "".join(page.shown)


def test_of_two_runs_the_one_without_says_what_would_score_them(beside, page_of):
    beside("deep")
    told = "".join(page_of("deep", "shallow").shown)
    assert "Checkpoints of shallow: widedraft eval RECIPE --checkpoints scores them." in told


@pytest.mark.parametrize("model", ["target", "draft"])
def test_curves_of_other_models_are_refused(beside, runs, model):
    beside("deep", **{model: "0" * 64})
    with pytest.raises(UserError, match=f"checkpoints.json: is of the {model} 000000000000"):
        read_cards([runs / "deep"])


def test_plots_have_a_ring_at_the_best_and_tell_every_value_in_words(beside, runs):
    beside("deep")
    figures = [block for block in training_section(read_cards([runs / "deep"])).blocks if isinstance(block, Figure)]
    assert [figure.name for figure in figures] == [
        f"checkpoints-{what}-t{temperature}" for temperature in (0, 1) for what in ("tau", "speed")
    ]
    assert "1.600 [1.500, 1.700] after 1,200 tokens" in figures[0].alt
    assert "1.25 after 1,200 tokens" in figures[1].alt
    rings = []

    class Axes:
        def plot(self, x, y, **style):
            if style.get("markerfacecolor") == "none":
                rings.append((*x, *y))

        def __getattr__(self, name):
            return lambda *_, **__: None

    for figure in figures[:2]:
        figure.draw(Axes())
        assert render(figure).png.startswith(b"\x89PNG")
    assert rings == [(1200, 1.6), (1200, 1.25)]

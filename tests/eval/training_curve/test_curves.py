"""Curves of checkpoints: which is best, at which num_speculative_tokens, and what is not surely behind it."""

import json

import pytest

from architectures.console import markdown
from architectures.errors import UserError
from eval.checkpoint_curve import Curves, curve, curves_page, read_curves
from eval.intervals import Resampling
from eval.models import SavedModel
from eval.replay import DraftScore, ReplayCounts, ResponseScore
from eval.scorecard_schema import write_record
from eval.speedup import StepTimes

RESAMPLING = Resampling(0.95, 200, 17)
STEPS = StepTimes(target_s=10.0, draft_s=1.0, draft_two_s=1.0, verify_s={1: 11.0, 2: 11.5})
TOKENS = 12


def score_of(*steps):
    """A draft that writes each prompt's 12 tokens in so many steps, whatever the num_speculative_tokens."""
    responses = [
        ResponseScore(
            prompt=place,
            matches=[1.0] * TOKENS,
            alpha_sum=TOKENS - number,
            accept_sum=TOKENS - number,
            num_changed=0,
            num_covered=0,
            counts={g: counts(number, g) for g in (1, 2)},
        )
        for place, number in enumerate(steps)
    ]
    return DraftScore("any", 0.0, "exact_greedy_draft", responses)


def counts(steps, num_speculative_tokens):
    accepted = TOKENS - steps
    each = (float(accepted), *[0.0] * (num_speculative_tokens - 1))
    return ReplayCounts(steps=float(steps), possible=each, reached=each, accepted=each)


def saved(*names):
    return [
        SavedModel(name, 10 * place, 1000 * place, lambda: pytest.fail("opened")) for place, name in enumerate(names)
    ]


def test_the_best_is_the_fastest_wherever_it_stands():
    found = curve(
        saved("start", "middle", "end"), [score_of(12, 12), score_of(7, 8), score_of(9, 9)], STEPS, RESAMPLING
    )
    assert (found.best, found.num_speculative_tokens) == ("middle", 1)
    assert [point.tau.value for point in found.points] == pytest.approx([1, 24 / 15, 24 / 18])
    assert [point.tokens for point in found.points] == [0, 1000, 2000]
    start, middle, end = found.points
    behind = [None if one.behind is None else one.behind.value for one in found.points]
    assert behind == [pytest.approx(24 / 15 - 1), None, pytest.approx(24 / 15 - 24 / 18)]
    assert middle.predicted > max(start.predicted, end.predicted)


def test_of_two_equal_checkpoints_the_earlier_is_best():
    found = curve(saved("a", "b"), [score_of(8, 8), score_of(8, 8)], STEPS, RESAMPLING)
    assert found.best == "a"


def rivals(found):
    """Checkpoints that the best is not surely ahead of."""
    points = [point for point in found.points if point.behind is not None]
    return [point.checkpoint for point in points if point.behind.interval is None or point.behind.interval[0] <= 0]


def test_one_that_is_behind_on_every_prompt_is_no_rival():
    least, better, close = score_of(*[12] * 8), score_of(*[7, 8] * 4), score_of(*[7, 9, 7, 8] * 2)
    found = curve(saved("a", "b", "c"), [least, better, close], STEPS, RESAMPLING)
    assert (found.best, rivals(found)) == ("b", ["c"])


@pytest.mark.parametrize("prompts", [1, 5])
def test_few_prompts_decide_nothing(prompts):
    found = curve(saved("a", "b"), [score_of(*[12] * prompts), score_of(*[7] * prompts)], STEPS, RESAMPLING)
    assert (found.best, rivals(found)) == ("b", ["a"])


@pytest.fixture
def curves():
    found = curve(saved("start", "end"), [score_of(12, 11), score_of(7, 8)], STEPS, RESAMPLING)
    return Curves(target="target", draft="draft", curves=(found,))


def test_a_file_is_read_as_it_was_written(curves, tmp_path):
    write_record(curves, tmp_path / "checkpoints.json")
    assert read_curves(tmp_path / "checkpoints.json") == curves


def test_the_page_has_every_checkpoint_with_its_tokens_and_marks_the_best(curves):
    page = markdown(curves_page(curves))
    assert "| start | 0 | 0 |" in page
    assert "| end (best) | 10 | 1,000 |" in page


def test_a_file_of_another_form_is_refused_by_its_field(curves, tmp_path):
    path = tmp_path / "checkpoints.json"
    write_record(curves, path)
    record = json.loads(path.read_text())
    record["curves"][0]["points"][1]["tokens"] = "many"
    path.write_text(json.dumps(record))
    with pytest.raises(UserError) as error:
        read_curves(path)
    assert f"{path}: curves.0.points.1.tokens: " in str(error.value)

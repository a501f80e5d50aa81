"""Which candidates no training is worth: too slow, narrower than one that fits, hopeless, or dominated."""

from dataclasses import replace

import pytest

from distill.choose.ranked.page import left_out_page
from distill.choose.shapes.left_out import LeftOut
from distill.choose.steps.pruned import Bounds, contains, pruned
from distill.choose.steps.timed import places_of
from eval.acceptance.estimates import Resampling
from tests.distill.choose.asked import candidates_of
from tests.eval.records import latency

RESAMPLING = Resampling(confidence=0.95, num_resamples=200, seed=17)
NARROW, WHOLE, DEEP_NARROW, DEEP = "1-layers-32-hidden", "1-layers", "2-layers-32-hidden", "2-layers"


@pytest.fixture
def candidates(recipe, source):
    return candidates_of(recipe, source, [1, 2], hidden=["0.5x", "all"])


def steps(milliseconds, wide_ms=0.01, target_ms=40.0, batch=1):
    times = {name: (ms, ms) for name, ms in milliseconds.items()}
    return replace(latency(target_ms, {1: 42.0, 4: 44.0}, times, wide_ms), batch=batch)


def rules(found):
    return {each.candidate: each.rule for each in found.left_out}


def names(found):
    return [each.name for each in found.kept]


RISING = {NARROW: 2.0, WHOLE: 3.0, DEEP_NARROW: 4.0, DEEP: 6.0}


def test_faster_smaller_shapes_stay(candidates):
    found = pruned(candidates, [steps(RISING)], Bounds(), RESAMPLING)
    assert names(found) == [NARROW, WHOLE, DEEP_NARROW, DEEP]
    assert found.left_out == []
    assert found.prospects[DEEP].cost_ratio == pytest.approx(0.15)


def test_a_shape_that_a_larger_one_outruns_is_out(candidates):
    found = pruned(candidates, [steps({**RISING, NARROW: 3.5})], Bounds(), RESAMPLING)
    assert found.left_out == [
        LeftOut(NARROW, "dominated", "1-layers has no less of anything and is no slower"),
    ]


def test_it_stays_where_times_do_not_tell_them_apart_or_another_place_does(candidates):
    doubtful = steps({**RISING, NARROW: 3.01}, wide_ms=0.3)
    assert NARROW in names(pruned(candidates, [doubtful], Bounds(), RESAMPLING))
    in_nine_of_ten_draws = steps({**RISING, NARROW: 3.36}, wide_ms=0.3)
    assert NARROW in names(pruned(candidates, [in_nine_of_ten_draws], Bounds(), RESAMPLING))
    slower_alone = steps({**RISING, NARROW: 3.5})
    faster_in_batch = steps({**RISING, NARROW: 2.5}, batch=8)
    assert NARROW in names(pruned(candidates, [slower_alone, faster_in_batch], Bounds(), RESAMPLING))


def test_steps_of_two_tokens_count_as_well(candidates):
    times = {**{name: (ms, ms) for name, ms in RISING.items()}, NARROW: (3.5, 2.0)}
    timed = latency(40.0, {1: 42.0}, times, 0.01)
    assert NARROW in names(pruned(candidates, [timed], Bounds(), RESAMPLING))


def test_acceptance_that_is_given_needs_no_rule_of_sizes(candidates):
    found = pruned(candidates, [steps({**RISING, NARROW: 3.5})], Bounds(by_size=False), RESAMPLING)
    assert names(found) == [NARROW, WHOLE, DEEP_NARROW, DEEP]


def test_what_pays_at_one_place_alone_is_not_hopeless(candidates):
    slow = {**RISING, DEEP: 60.0}
    assert rules(pruned(candidates, [steps(slow)], Bounds(), RESAMPLING)) == {DEEP: "cannot pay"}
    elsewhere = steps(slow, target_ms=400.0, batch=4)
    assert DEEP in names(pruned(candidates, [steps(slow), elsewhere], Bounds(), RESAMPLING))


def test_no_step_takes_longer_than_allowed_and_the_widest_that_fit_stay(candidates):
    found = pruned(candidates, [steps(RISING)], Bounds(most_milliseconds=4.0), RESAMPLING)
    assert rules(found) == {DEEP: "too slow"}
    assert found.left_out[0].reason == "a step takes 6.00 ms, of 4"
    widest = pruned(candidates, [steps(RISING)], Bounds(4.0, is_widest=True), RESAMPLING)
    assert names(widest) == [WHOLE, DEEP_NARROW]
    assert rules(widest) == {DEEP: "too slow", NARROW: "a wider one fits"}
    elsewhere = [steps(RISING), steps({name: 10 * ms for name, ms in RISING.items()}, batch=4)]
    assert rules(pruned(candidates, elsewhere, Bounds(most_milliseconds=4.0), RESAMPLING)) == {DEEP: "too slow"}


def test_one_shape_contains_another_that_has_no_more_of_anything(source):
    assert contains(source, replace(source, hidden=32))
    assert contains(source, source.with_head_of(50))
    assert not contains(source, source)
    assert not contains(replace(source, layers=1), replace(source, hidden=32))
    assert not contains(source.with_head_of(50), source.with_head_of(60))


def test_the_page_says_how_many_are_out_and_why():
    [section] = left_out_page([LeftOut("a", "a wider one fits", "b is wider and fits too")], 5)
    assert section.title == "Before any training: 1 of 5 shapes left out"
    assert section.blocks[0].rows == [("a", "a wider one fits", "b is wider and fits too")]
    assert left_out_page([], 5) == []


def test_places_are_every_batch_with_every_context_the_first_deciding():
    assert places_of([4, 1], [64, 256]) == [(4, 64), (4, 256), (1, 64), (1, 256)]
    assert places_of([], [])[0].batch == 1
    assert [each.context for each in places_of([1, 2], [])] == [places_of([], [])[0].context] * 2

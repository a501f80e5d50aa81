"""What a way is worth follows from its seconds, what is predicted from steps, and the page says no more than both."""

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from architectures.pages.markdown import markdown
from eval.acceptance.estimates import Estimate, Resampling
from eval.acceptance.speedup import StepTimes
from eval.decoding.texts import Round
from eval.records.speed import MeasuredWith, SpeedFile
from eval.speed.best import behind_the_fastest, best_of_each
from eval.speed.page import error_sentence, fastest_sentence, speed_page
from eval.speed.plot import draw
from eval.speed.record import largest_error, pass_ms, round_parts, speed_figures, speed_of_way
from eval.speed.ways import BESIDE, DRAFT, LOOKUP, PLAIN, TRANSFORMERS, Taken, Way

NAME = "draft"
RESAMPLING = Resampling(confidence=0.9, num_resamples=300, seed=17)
STEPS = StepTimes(target_s=0.040, draft_s=0.004, draft_two_s=0.006, verify_s={1: 0.044, 4: 0.050})


def taken(tokens, decode_s, prefill_s=0.0, rounds=()):
    texts = (tuple(rounds),) if rounds else ()
    return Taken(tokens, prefill_s, decode_s, prefill_s + decode_s, texts, len(rounds) or tokens)


def rounds_of(lookahead, accepted, steps=STEPS, rest_s=0.0):
    """Rounds that take what the step times say, and the seconds of all with a rest in each."""
    found, caught_up = [], 0.0
    for kept in accepted:
        draft_s = lookahead * steps.draft_s + caught_up
        found.append(Round(0, lookahead, lookahead, kept, 1, draft_s, steps.verify_s[lookahead]))
        caught_up = steps.draft_two_s - steps.draft_s if kept == lookahead else 0.0
    return found, sum(one.draft_s + one.verify_s + rest_s for one in found)


class Steps:
    """Measured steps, as far as a record asks."""

    drafts = (NAME,)

    def step_times(self, draft):
        assert draft in self.drafts
        return STEPS

    def resampled_step_times(self, draft, lookaheads, resampling):
        assert (draft in self.drafts, set(lookaheads) <= set(STEPS.verify_s), resampling) == (True, True, RESAMPLING)
        return [replace(STEPS, target_s=STEPS.target_s * factor) for factor in (0.5, 1.0, 2.0)]


def test_the_ratio_is_seconds_per_token_over_seconds_per_token():
    times = {
        Way(PLAIN): [{0: taken(10, 1.0, 1.0), 1: taken(10, 1.0, 1.0)}],
        Way(LOOKUP, 1): [{0: taken(20, 1.0, 1.0), 1: taken(10, 0.5, 1.0)}],
    }
    row = speed_of_way(Way(LOOKUP, 1), times, Steps(), RESAMPLING)
    assert row.decode.tokens_per_s == 20
    assert (row.decode.speedup.value, row.decode.speedup.interval) == (pytest.approx(2.0), None)
    assert row.whole.speedup.value == pytest.approx((4 / 20) / (3.5 / 30))
    own = speed_of_way(Way(PLAIN), times, Steps(), RESAMPLING)
    assert own.whole.speedup == Estimate(1.0, None)


def times_of(*decode_s, repeats=1):
    """Looking up took so long for ten tokens of each group, again and again; the target alone one second."""
    return {
        Way(PLAIN): [dict.fromkeys(range(len(decode_s)), taken(10, 1.0))] * repeats,
        Way(LOOKUP, 1): [{place: taken(10, each_s) for place, each_s in enumerate(decode_s)}] * repeats,
    }


def test_groups_are_the_units_and_repetitions_are_not():
    """All repetitions of a group together: what comes and goes within a group leaves no doubt."""
    several = times_of(0.5, 0.6, 0.4, 0.5, 0.5, 0.6)
    once, often = (
        speed_of_way(Way(LOOKUP, 1), times, Steps(), RESAMPLING).decode.speedup.interval
        for times in (several, {way: rows * 9 for way, rows in several.items()})
    )
    assert often == pytest.approx(once)
    assert once[0] < 1.9 < once[1]
    alone, fast, slow = taken(10, 1.0), taken(10, 0.5), taken(10, 2.0)
    swapped = {
        Way(PLAIN): [dict.fromkeys(range(6), alone)] * 2,
        Way(LOOKUP, 1): [dict.fromkeys(range(6), fast), dict.fromkeys(range(6), slow)],
    }
    interval = speed_of_way(Way(LOOKUP, 1), swapped, Steps(), RESAMPLING).decode.speedup.interval
    assert interval == pytest.approx((0.8, 0.8))


@pytest.mark.parametrize(("groups", "has_interval"), [(1, False), (2, False), (4, False), (5, True)])
def test_few_groups_have_no_interval_however_often_they_are_repeated(groups, has_interval):
    """At a confidence of 0.9 five are the least: fewer lie on one side of the truth too often by chance alone."""
    times = times_of(*[0.5] * groups, repeats=20)
    for way in times:
        row = speed_of_way(way, times, Steps(), RESAMPLING)
        for speed in (row.decode, row.whole):
            assert (speed.speedup.interval is not None) == has_interval


@pytest.mark.parametrize(("lookahead", "accepted"), [(1, [1, 0, 1, 0]), (4, [4, 2, 4, 0])])
def test_a_loop_of_nothing_but_steps_is_predicted_exactly(lookahead, accepted):
    rounds, seconds = rounds_of(lookahead, accepted)
    tokens = sum(one.accepted + 1 for one in rounds)
    times = {
        Way(PLAIN): [{0: taken(100, 100 * STEPS.target_s)}],
        Way(DRAFT, lookahead, NAME): [{0: taken(tokens, seconds, rounds=rounds)}],
    }
    row = speed_of_way(Way(DRAFT, lookahead, NAME), times, Steps(), RESAMPLING)
    assert row.tau == tokens / 4
    measured = row.decode.speedup.value
    assert row.predicted.value == pytest.approx(measured)
    assert row.predicted.interval == pytest.approx((0.55 * measured, 1.9 * measured))  # 5 % and 95 % of the three
    assert vars(row.round_ms) == pytest.approx(vars(row.predicted_round_ms))


def batch_of(lookahead, rows, steps=STEPS):
    """Rounds of rows that are decoded together, and their seconds: the draft catches up for all rows if for any."""
    texts, seconds, left = [[] for _ in rows], 0.0, range(len(rows))
    for step in range(max(map(len, rows))):
        before, left = left, [row for row in range(len(rows)) if step < len(rows[row])]
        full = step > 0 and any(rows[row][step - 1] == lookahead for row in before if row in left)
        draft_s = lookahead * steps.draft_s + full * (steps.draft_two_s - steps.draft_s)
        seconds += draft_s + steps.verify_s[lookahead]
        for row in left:
            one = Round(0, lookahead, lookahead, rows[row][step], len(left), draft_s, steps.verify_s[lookahead])
            texts[row].append(one)
    tokens = sum(kept + 1 for row in rows for kept in row)
    return Taken(tokens, 0.0, seconds, seconds, tuple(map(tuple, texts)), max(map(len, rows)))


@pytest.mark.parametrize(
    "rows",
    [
        ([4, 2, 0, 1], [0, 4, 0, 1]),  # in turn: the batch catches up twice, each row once
        ([4, 4, 1, 0], [4, 4, 1, 0]),  # at once: twice as well
        ([4, 0, 0, 0], [1, 4]),  # the second row ends with a round that kept everything, and nobody catches up
        ([0, 0, 0, 0], [4]),  # one row takes four times as long as the other
    ],
)
def test_a_batch_of_nothing_but_steps_is_predicted_exactly(rows):
    """The target alone takes a step for each token of the longest row, a draft a round of all rows that are left."""
    drafted = batch_of(4, rows)
    longest = max(sum(kept + 1 for kept in row) for row in rows)
    alone = Taken(drafted.tokens, 0.0, longest * STEPS.target_s, longest * STEPS.target_s, (), longest)
    times = {Way(PLAIN): [{0: alone}], Way(DRAFT, 4, NAME): [{0: drafted}]}
    row = speed_of_way(Way(DRAFT, 4, NAME), times, Steps(), RESAMPLING)
    assert row.predicted.value == pytest.approx(row.decode.speedup.value)
    assert vars(row.round_ms) == pytest.approx(vars(row.predicted_round_ms))
    assert row.tau == drafted.tokens / sum(map(len, rows))


def all_ways(rest_s, groups=6):
    rounds, seconds = rounds_of(4, [4, 0, 2, 0], rest_s=rest_s)
    found = [Round(0, 4, 0, 0, 1, 0.0, 0.04), Round(1, 4, 1, 1, 1, 0.0, 0.04)]
    each = {
        Way(PLAIN): taken(10, 0.4),
        Way(DRAFT, 4, NAME): taken(10, seconds, rounds=rounds),
        Way(LOOKUP, 4): taken(3, 0.08, rounds=found),
        Way(TRANSFORMERS, 4, NAME): Taken(10, None, None, 0.8),
    }
    return {way: [dict.fromkeys(range(groups), one)] for way, one in each.items()}


def record_of(rest_s, groups=6):
    return file_of(speed_figures(all_ways(rest_s, groups), Steps(), RESAMPLING), prompts=groups)


def file_of(figures, *, prompts=6, batch=1):
    settings = MeasuredWith(
        prompts=prompts,
        max_new_tokens=8,
        batch=batch,
        temperature=0.0,
        repeats=1,
        beside=False,
        compiled=False,
        captured=False,
        confidence=RESAMPLING.confidence,
        seed=17,
    )
    return SpeedFile(**vars(figures), settings=settings, **dict.fromkeys(("target", "drafts", "machine", "provenance")))


def test_prediction_names_the_term_it_misses():
    assert record_of(0.0).largest_error.share == pytest.approx(0)
    assert error_sentence(record_of(0.0)) == "Predicted and measured differ by at most 0%, with draft at lookahead 4."
    told = error_sentence(record_of(0.030))
    assert re.search(r"differ by at most \d\d%, with draft at lookahead 4: above all, ", told)
    assert told.endswith("a measured round has +30.0 ms of the loop around the models.")


def test_prediction_names_the_targets_own_step_where_that_is_what_it_misses():
    """A round takes what its steps say, and the target alone 8 ms a token more than its step: 48 over 40."""
    record = record_of(0.0)
    ways = tuple(replace(row, pass_ms=48.0) if row.way == PLAIN else row for row in record.ways)
    record = replace(record, ways=ways, largest_error=replace(record.largest_error, share=40 / 48 - 1))
    assert error_sentence(record).endswith("above all, a step of the target alone takes +8.0 ms.")


def test_milliseconds_of_a_pass():
    assert pass_ms([taken(10, 0.4), taken(30, 0.8)]) == pytest.approx(30)
    assert pass_ms([taken(10, 0.4), Taken(10, None, None, 0.8)]) is None


def test_the_largest_error_is_the_farthest_on_either_side():
    [row] = [row for row in record_of(0.0).ways if row.way == DRAFT]
    speed = replace(row.decode, speedup=Estimate(1.0, None))
    rows = [
        replace(row, lookahead=lookahead, predicted=Estimate(predicted, None), decode=speed)
        for lookahead, predicted in ((1, 1.1), (2, 0.7), (3, 1.2))
    ]
    found = largest_error([*rows, replace(rows[0], way=LOOKUP, lookahead=4, predicted=Estimate(9.0, None))])
    assert (found.lookahead, found.share) == (2, pytest.approx(-0.3))


def test_a_rounds_time_is_that_of_the_row_that_took_most_of_them():
    """Rows of a batch share each round; the other row was done after one."""
    rounds, seconds = rounds_of(4, [4, 0, 2, 0])
    both = Taken(12, 0.0, seconds, seconds, (tuple(rounds[:1]), tuple(rounds)))
    parts = round_parts([both])
    assert parts.verify == pytest.approx(1000 * STEPS.verify_s[4])
    assert parts.rest == pytest.approx(0)


def test_the_page_has_every_way_and_says_what_is_faster():
    page = markdown(speed_page(record_of(0.0)), level=2)
    assert "## Batch 1, temperature 0, 6 prompts, 1 repetition, eager steps" in page
    assert "| target alone |  |  | 25.0 | 1.00x [1.00, 1.00] |  | 1.00x [1.00, 1.00] |  |" in page
    assert re.search(
        r"\| draft \| 4 \| 2\.50 \| \d+\.\d \| 1\.50x \[1\.50, 1\.50\] \| 1\.50x \[0\.83, 2\.86\] \|", page
    )
    assert "| n-gram lookup | 4 | 1.50 | 37.5 | 1.50x [1.50, 1.50] |  | 1.50x [1.50, 1.50] | 0.0 + 40.0 + 0.0 |" in page
    assert "| transformers, draft | 4 |  | 12.5 | not told apart |  | 0.50x [0.50, 0.50] |  |" in page
    best, included = "At its best of those measured, lookahead 4", "the reading of the prompt included"
    assert f"{best}, draft gives 1.50x [1.50, 1.50], {included}. Faster." in page
    assert f"{best}, n-gram lookup gives 1.50x [1.50, 1.50], {included}. Faster." in page
    assert "the fastest" not in page
    assert "intervals hold for all 2 ways compared together" in page


@pytest.mark.parametrize(("groups", "few"), [(1, "one group of prompts gives"), (4, "4 groups of prompts give")])
def test_the_page_of_few_groups_decides_nothing_and_says_how_many_do(groups, few):
    """0.57x [0.57, 0.57] Slower, the page once said of two groups; 1.50x is as sure here."""
    record = record_of(0.0, groups=groups)
    page = markdown(speed_page(replace(record, settings=replace(record.settings, batch=4))), level=2)
    remedy = "no interval: 5 are the least; --num-prompts 20 makes them at --batch-size 4."
    assert page.count(f"1.50x, the reading of the prompt included. Not decided, because {few} {remedy}") == 2
    assert not re.search(r"Faster|Slower|1\.50x \[1.50|compared together", page)


def page_of_lookups(*decode_s):
    """The page where looking up took so long, for each group."""
    times = all_ways(0.0)
    rounds = times[Way(LOOKUP, 4)][0][0].texts[0]
    times[Way(LOOKUP, 4)] = [{place: taken(10, each_s, rounds=rounds) for place, each_s in enumerate(decode_s)}]
    return markdown(speed_page(file_of(speed_figures(times, Steps(), RESAMPLING))), level=2)


def test_what_is_said_of_a_way_is_what_its_interval_says():
    included = "the reading of the prompt included"
    assert f"4.00x [4.00, 4.00], {included}. Faster." in page_of_lookups(*[0.1] * 6)
    assert f"0.13x [0.13, 0.13], {included}. Slower." in page_of_lookups(*[3.0] * 6)
    undecided = re.escape("Not decided, because the interval holds 1.")
    assert re.search(rf"0\.80x \[0\.\d\d, 1\.\d\d\], {included}. {undecided}", page_of_lookups(*[0.2, 0.8] * 3))


def record_of_drafts(**decode_s):
    """Several drafts at one lookahead: seconds of each group of ten tokens, which take the target alone 0.4."""
    rounds, _ = rounds_of(4, [4, 0, 2, 0])
    times = {Way(PLAIN): [{place: taken(10, 0.4) for place in range(6)}]}
    for name, seconds in decode_s.items():
        times[Way(DRAFT, 4, name)] = [{place: taken(10, each_s, rounds=rounds) for place, each_s in enumerate(seconds)}]
    times[Way(LOOKUP, 4)] = [{place: taken(10, 0.4, rounds=rounds) for place in range(6)}]
    steps = Steps()
    steps.drafts = tuple(decode_s)
    return file_of(speed_figures(times, steps, RESAMPLING))


def test_drafts_are_compared_in_the_same_turns():
    """All of 2 are of one mind with the fastest, though the intervals of their speed-ups overlap."""
    record = record_of_drafts(
        a=(0.11, 0.22, 0.44, 0.11, 0.22, 0.44),
        b=(0.10, 0.20, 0.40, 0.10, 0.20, 0.40),
        c=(0.48, 0.24, 0.12, 0.48, 0.24, 0.12),
    )
    assert [(one.way, one.draft) for one in record.best] == [
        (DRAFT, "a"),
        (DRAFT, "b"),
        (DRAFT, "c"),
        (LOOKUP, None),
    ]
    a, c = record.behind
    assert (a.draft, c.draft) == ("a", "c")
    assert [a.fastest.value, *a.fastest.interval] == pytest.approx([1.1] * 3)
    assert c.fastest.value == pytest.approx(1.2)
    page = markdown(speed_page(record), level=2)
    told = "Each at its best, b is the fastest. In the same turns it is so many times as fast as the others: "
    assert f"{told}a 1.10x [1.10, 1.10], c 1.20x [" in page
    assert "Not decided against c." in page
    assert all(f"| {name} | 4 | 2.50 |" in page for name in "abc")
    decided = markdown(speed_page(record_of_drafts(a=(0.2,) * 6, b=(0.1,) * 6)), level=2)
    assert "a 2.00x [2.00, 2.00]. Decided against all of them." in decided


def whole_times(**speeds):
    """Drafts at lookaheads 1, 2, ..., so many times as fast as the target alone, on each of six groups."""
    times = {Way(PLAIN): [dict.fromkeys(range(6), taken(10, 1.0))]}
    for draft, by_lookahead in speeds.items():
        for lookahead, of_groups in enumerate(by_lookahead, start=1):
            seconds = {place: taken(10, 1 / value) for place, value in enumerate(np.broadcast_to(of_groups, 6))}
            times[Way(DRAFT, lookahead, draft)] = [seconds]
    return times


def test_a_draft_is_at_its_best_where_the_whole_is_fastest():
    best = best_of_each(whole_times(a=(0.9, 1.2, 1.1), b=(0.8, 0.7, 0.6)), RESAMPLING)
    assert [(row.draft, row.lookahead) for row in best] == [("a", 2), ("b", 1)]
    assert [row.speedup.value for row in best] == pytest.approx([1.2, 0.8])
    assert [row.compared for row in best] == [6, 6]


def test_the_interval_of_the_best_is_wider_the_more_it_was_picked_from():
    uneven = [1.1, 1.3, 1.2, 1.25, 1.15, 1.4]
    others = [np.roll(uneven, shift) - 0.2 for shift in (1, 3, 5)]
    widths = []
    for drafts in ({"a": (uneven,)}, {"a": (uneven, others[0])}, {"a": (uneven, *others)}):
        [best] = best_of_each(whole_times(**drafts), RESAMPLING)
        assert best.lookahead == 1
        low, high = best.speedup.interval
        widths.append(high / low)
    assert widths[0] < widths[1] < widths[2]


def test_drafts_are_compared_at_any_lookahead_of_each():
    times = whole_times(a=(1.0, 1.5), b=(1.2, 1.1), c=(0.9, 0.8))
    found = behind_the_fastest(best_of_each(times, RESAMPLING), times, RESAMPLING)
    assert [(one.draft, one.fastest.value) for one in found] == [
        ("b", pytest.approx(1.5 / 1.2)),
        ("c", pytest.approx(1.5 / 0.9)),
    ]
    assert {one.compared for one in found} == {3 * 2 * 2 * 2}
    assert behind_the_fastest(best_of_each(whole_times(a=(1.0,)), RESAMPLING), times, RESAMPLING) == []


def test_a_draft_counts_as_it_is_faster_alone_or_with_its_policy():
    """An untrained draft whose policy looks up may leave a trained one behind, and is told from it by its name."""
    times = whole_times(a=(1.3, 1.2), b=(0.5, 0.4))
    for name, value in (("a", 1.1), ("b", 1.43)):
        seconds = {place: taken(10, 1 / value) for place in range(6)}
        times[Way(BESIDE, 2, name)] = [seconds]
    [found] = behind_the_fastest(best_of_each(times, RESAMPLING), times, RESAMPLING)
    assert (found.way, found.draft) == (DRAFT, "a")
    assert found.fastest.value == pytest.approx(1.43 / 1.3)
    assert found.compared == 3 * 3 * 2
    page = "\n".join(
        fastest_sentence(replace(record_of(0.0), best=tuple(best_of_each(times, RESAMPLING)), behind=(found,)))
    )
    assert page.startswith("Each at its best, lookup beside, b is the fastest.")
    assert ": a 1.10x [1.10, 1.10]." in page


def test_the_plot_has_every_way_and_what_was_predicted():
    axes = Figure().add_subplot()
    draw(axes, record_of(0.0))
    named = {line.get_label().strip(): line for line in axes.get_lines()}
    measured = [f"{label}, measured" for label in (NAME, LOOKUP, f"{TRANSFORMERS}, {NAME}")]
    assert {*measured, f"{NAME}, predicted"} == {label for label in named if not label.startswith("_")}
    assert [list(named[name].get_xdata()) for name in measured] == [[4]] * 3
    heights = [float(named[name].get_ydata()[0]) for name in measured]
    assert heights == pytest.approx([0.4 / 0.266, 1.5, 0.5], rel=1e-3)

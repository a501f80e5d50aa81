"""What scorecard.json says of acceptance, from figures small enough to work out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from eval.acceptance_rates import acceptance_row, difference_row, steps_at
from eval.intervals import Resampling
from eval.replay import (
    Accepts,
    DraftScore,
    Replay,
    ReplayedDraft,
    ReplayedResponse,
    ResponseScore,
    count_trace,
    score_response,
)
from eval.scorecard_schema import Ratio

RESAMPLING = Resampling(confidence=0.75, num_resamples=100, seed=17)  # three prompts are enough for an interval


def response(prompt, steps, *, num_tokens, alpha_sum, matches=None):
    matches = np.zeros(num_tokens) if matches is None else np.array(matches)
    counts = count_trace(steps, num_tokens=num_tokens, num_speculative_tokens=2)
    return ResponseScore(
        prompt, matches, alpha_sum, accept_sum=alpha_sum / 2, num_changed=0, num_covered=0, counts={2: counts}
    )


# The first prompt has two turns: 6 tokens in 3 steps, of which 1 kept both tokens. The others take a step a token.
GOOD = DraftScore(
    "good",
    0.0,
    "exact_greedy_draft",
    [
        response(0, [(0, 2), (3, 0)], num_tokens=4, alpha_sum=2.5),
        response(0, [(0, 1)], num_tokens=2, alpha_sum=0.5),
        response(1, [(0, 0), (1, 0)], num_tokens=2, alpha_sum=1.0),
        response(2, [(0, 0), (1, 0)], num_tokens=2, alpha_sum=1.0),
    ],
)
BAD = replace(
    GOOD,
    draft="bad",
    responses=[
        response(prompt, [(t, 0) for t in range(n)], num_tokens=n, alpha_sum=0.1 * n)
        for prompt, n in ((0, 4), (0, 2), (1, 2), (2, 2))
    ],
)


def rates_of(position):
    return [position.joint.value, position.conditional.value]


def test_positions_have_their_counts_and_rates():
    """Of 7 steps 4 have room for a token and 1 for two; 2 keep a first token, and 1 a second."""
    first, second = steps_at(GOOD, 2, RESAMPLING).positions
    assert (first.position, first.possible, first.reached, first.accepted) == (1, 4, 4, 2)
    assert rates_of(first) == [2 / 7, 2 / 4]
    assert second.position == 2
    uneven = replace(GOOD, responses=[response(0, [(0, 0), (1, 2), (4, 0)], num_tokens=5, alpha_sum=1.0)])
    _, second = steps_at(uneven, 2, RESAMPLING).positions
    assert (second.possible, second.reached, second.accepted) == (2, 1, 1)
    assert rates_of(second) == [1 / 3, 1]


def test_rates_of_steps_by_hand():
    """7 steps keep 2, 0; 1; 0, 0; 0, 0 tokens: 3 of 5 proposed ones."""
    record = steps_at(GOOD, 2, RESAMPLING)
    counts = {"steps": 7, "proposed": 5, "accepted": 3, "emitted": 10, "fully_accepted": 1}
    assert {name: getattr(record, name) for name in counts} == counts
    assert record.utilisation.value == 3 / 5
    assert record.tau.value == pytest.approx(10 / 7)
    assert record.histogram == (5, 1, 1)


def test_every_rate_has_an_interval_over_prompts():
    """Each kind of prompt three times over, so that something of everything was counted in three."""
    often = [replace(one, prompt=one.prompt + 3 * copy) for copy in range(3) for one in GOOD.responses]
    record = steps_at(replace(GOOD, responses=often), 2, RESAMPLING)
    rates = [rate for place in record.positions for rate in (place.joint, place.conditional)]
    for rate in (record.tau, record.utilisation, *rates):
        low, high = rate.interval
        assert 0 <= low <= rate.value <= high


def test_rates_of_nothing_are_null():
    """Texts of one token: steps, but no proposal."""
    bare = replace(GOOD, responses=[response(n, [(0, 0)], num_tokens=1, alpha_sum=0.5) for n in range(2)])
    record = steps_at(bare, 2, RESAMPLING)
    assert record.utilisation == Ratio(None, None)
    assert record.positions[0].conditional.value is None
    assert record.positions[0].joint.value == 0


def test_means_over_tokens_stand_beside_their_sums():
    record = acceptance_row([GOOD], {}, RESAMPLING)
    assert (record.rule, record.prompts, record.responses) == ("exact_greedy_draft", 3, 4)
    for name, total in (("alpha", 5.0), ("alpha_of_text", 2.5), ("greedy_match", 0.0)):
        mean = getattr(record, name)
        assert (mean.value, mean.sum, mean.tokens) == (total / 10, total, 10)
        assert mean.interval[0] <= total / 10 <= mean.interval[1]


def test_differences_are_draft_minus_baseline_under_every_rule():
    other = [replace(one, rule="rejection", draft=one.draft) for one in (GOOD, BAD)]
    record = difference_row([GOOD, other[1]], [BAD, other[0]], RESAMPLING)
    assert (record.draft, record.baseline, record.rule) == ("good", "bad", "exact_greedy_draft")
    assert record.alpha.value == pytest.approx(5 / 10 - 0.1)
    assert record.by_k[0].tau.value == pytest.approx(10 / 7 - 1)
    [swapped] = record.other_rules
    assert swapped.rule == "rejection"
    assert swapped.by_k[0].tau.value == pytest.approx(1 - 10 / 7)


def test_matches_of_a_conversation_are_one_prompts():
    """Of the prompts the first, with two responses, is even: a single one is left, which is no evidence."""
    rows = [(0, [1, 1]), (0, [0, 0]), (1, [1, 0])], [(0, [1, 0]), (0, [1, 0]), (1, [0, 0])]
    first, second = (
        replace(GOOD, responses=[response(n, [(0, 0), (1, 0)], num_tokens=2, alpha_sum=1.0, matches=m) for n, m in one])
        for one in rows
    )
    row = difference_row([first], [second], RESAMPLING)
    assert row.greedy_match.value == pytest.approx((3 - 2) / 6)
    assert row.greedy_match_p == 1


def replayed(accept, *, entropy, prompt=0, category=None):
    accept, entropy = np.array(accept, dtype=float), np.array(entropy, dtype=float)
    rules = {"exact_greedy_draft": Accepts(accept, accept / 2)}
    return ReplayedResponse(prompt, category, Replay(rules, accept, np.zeros_like(accept), accept, entropy, accept))


def test_a_score_sums_what_its_rule_does():
    changed = np.array([0.0, -np.inf, -np.inf])
    one = np.array([1.0, 0.0, 1.0])
    zeros = np.zeros(3)
    rules = {"rejection": Accepts(zeros, zeros), "exact_greedy_draft": Accepts(one, one / 2)}
    row = ReplayedResponse(4, None, Replay(rules, one, changed, zeros, zeros, one))
    score = score_response(row, rule="exact_greedy_draft", ks=[1, 2])
    assert (score.prompt, score.num_tokens, score.alpha_sum, score.accept_sum, score.num_changed) == (4, 3, 1, 2, 2)
    assert score.num_covered == 2
    assert score.matches.tolist() == [1, 0, 1]
    assert list(score.counts) == [1, 2]


def test_bins_hold_their_own_tokens_and_the_steps_that_start_there():
    """Rounds of the first response start at 0, 2 and 3 (k = 1); its third token is one the target is unsure of."""
    responses = [
        replayed([1, 0, 0, 1], entropy=[0, 0, 1.5, 0], category="code"),
        replayed([0, 0], entropy=[0, 0], prompt=1, category="talk"),
    ]
    draft = ReplayedDraft("draft", 0.0, responses)
    record = acceptance_row(draft.scores([1]), draft.parted_scores([1]), RESAMPLING)
    by_category, by_entropy = record.bins  # all six tokens are early: one bin, left out
    assert (by_category.by, by_entropy.by) == ("category", "entropy")
    code, talk = by_category.bins
    assert (code.bin, code.prompts, code.alpha.sum, code.alpha.tokens) == ("code", 1, 1, 4)
    assert (code.by_k[0].steps, code.by_k[0].tau.value) == (3, 4 / 3)
    assert (talk.bin, talk.alpha_of_text.value, talk.by_k[0].steps) == ("talk", 0, 2)
    sure, unsure = by_entropy.bins
    assert (sure.bin, unsure.bin) == ("below 0.1", "1 to 2")
    assert (unsure.alpha.tokens, unsure.by_k[0].steps) == (1, 1)
    assert (unsure.by_k[0].proposed, unsure.by_k[0].accepted) == (1, 0)
    for bins in (by_category.bins, by_entropy.bins):
        whole = record.by_k[0]
        for name in ("steps", "proposed", "accepted", "emitted"):
            assert sum(getattr(one.by_k[0], name) for one in bins) == getattr(whole, name)


def test_a_bin_in_which_no_step_starts_has_no_tau():
    draft = ReplayedDraft("draft", 0.0, [replayed([1, 1, 1], entropy=[0, 1.5, 0])])
    record = acceptance_row(draft.scores([2]), draft.parted_scores([2]), RESAMPLING)
    _, unsure = record.bins[0].bins
    assert (unsure.alpha.tokens, unsure.by_k[0].steps) == (1, 0)
    assert unsure.by_k[0].tau == Ratio(None, None)

"""Looking up beside a draft: the record is its definition, and decoding stays lossless whoever proposes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.decoding.rules import EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT, REJECTION
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.decoding.texts import Limits, Speculation
from eval.models.loading import load_model
from eval.proposing.ngram import NgramLookup
from eval.proposing.policy import ProposalPolicy, TextRecord, hit_rates, new_record
from tests.eval.decoding.laws import (
    WARM,
    law_exact_rules_write_what_plain_sampling_writes,
    law_greedy_text_is_the_targets,
    law_rows_do_not_feel_each_other,
    law_sampled_texts_are_the_targets,
)

ALWAYS = ProposalPolicy(3, 0.0, (0.5, 0.5, 0.5), 4.0)
NEVER = ProposalPolicy(3, 2.0, (0.5, 0.5, 0.5), 4.0)
OFTEN = ProposalPolicy(5, 0.3, (0.2, 0.5, 0.9), 2.0)
DOUBTFUL = ProposalPolicy(3, 2.0, (0.5, 0.5, 0.5), 4.0, confidence=0.45)  # of a draft of four ids, now and then
BOTH = ProposalPolicy(5, 0.3, (0.2, 0.5, 0.9), 2.0, confidence=0.45)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=24), longest=st.integers(1, 5), count=st.integers(1, 6))
def test_what_it_finds_is_what_a_search_finds(ids, longest, count):
    policy = ProposalPolicy(count, 0.0, (0.5,) * longest, 1.0)
    assert new_record(policy, ids).proposal(policy, count) == NgramLookup(longest).continuation(ids, count)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 2), min_size=2, max_size=20), longest=st.integers(1, 4))
def test_the_record_counts_every_token_that_could_have_been_looked_up(ids, longest):
    record, tries, hits = TextRecord(longest), {}, {}
    for place, token in enumerate(ids):
        record.add(token)
        seen = ids[:place]
        for size in range(min(longest, place - 1), 0, -1):
            ends = [end for end in range(size, place) if seen[end - size : end] == seen[place - size :]]
            if ends:
                tries[size] = tries.get(size, 0) + 1
                hits[size] = hits.get(size, 0) + (seen[ends[-1]] == token)
                break
    assert (record.tries, record.hits) == (tries, hits)


def test_the_rate_leans_on_the_prior_until_the_text_has_spoken():
    policy = ProposalPolicy(2, 0.5, (0.4,), 2.0)
    record = new_record(policy, [7, 8])
    assert record.rate(policy) == 0.0  # nothing stands earlier
    record.add(7)
    assert record.rate(policy) == pytest.approx(0.4)
    record.add(8)  # as after the first 7
    record.add(7)  # as after the first 8
    assert record.rate(policy) == pytest.approx((2 * 0.4 + 2) / 4)
    assert record.proposal(policy, 5) == [8, 7]
    assert record.proposal(policy, 1) == [8]
    record.add(9)
    assert record.proposal(policy, 5) == []  # a token that is new


def test_rates_of_texts_count_answers_alone():
    texts = [([1, 2, 1, 2, 1], [2, 1, 3])]  # before 2, 1, 3: runs of the longest kind, two of them right
    assert hit_rates(texts, 2) == (pytest.approx(1 / 2), pytest.approx((2 + 1) / (3 + 2)))
    assert hit_rates([], 2) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lookahead": 0}, "lookahead must be at least 1, got 0"),
        ({"prior": ()}, "prior must be rates"),
        ({"prior": (0.5, 1.5)}, "prior must be rates"),
        ({"weight": 0.0}, "weight must be above 0"),
        ({"confidence": -0.1}, r"confidence must be in \[0, 1\], got -0\.1"),
        ({"confidence": float("nan")}, "confidence must be in"),
    ],
)
def test_policies_that_mean_nothing_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ProposalPolicy(**{"lookahead": 2, "least": 0.5, "prior": (0.5,), "weight": 1.0} | change)


def test_a_policy_needs_a_model_to_stand_beside(target):
    with pytest.raises(ValueError, match="beside a draft that is a model"):
        speculative_decode(target, NgramLookup(), [[1]], limits=Limits(4), lookup_policy=ALWAYS)


@pytest.mark.parametrize("policy", [ALWAYS, OFTEN, DOUBTFUL, BOTH])
@pytest.mark.parametrize("rule", [REJECTION, EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT])
def test_sampled_texts_are_the_targets(small_pair, rule, policy):
    law_sampled_texts_are_the_targets(*small_pair, rule=rule, beside=policy)


@pytest.mark.parametrize("lookahead", [1, 4])
@pytest.mark.parametrize("policy", [ALWAYS, OFTEN])
@pytest.mark.parametrize("small_head", [False, True])
def test_greedy_text_is_the_targets(target, noisy_folder, small_head_folder, prompts, policy, lookahead, small_head):
    draft = load_model(small_head_folder if small_head else noisy_folder, dtype="float32", device="cpu")
    law_greedy_text_is_the_targets(target, draft, prompts, Limits(40, frozenset({2})), lookahead, beside=policy)


@pytest.mark.parametrize("sampling", [Sampling(), WARM, Sampling(0.0, repetition_penalty=1.4)])
@pytest.mark.parametrize("small_head", [False, True])
def test_rows_do_not_feel_each_other(target, noisy_folder, small_head_folder, prompts, sampling, small_head):
    draft = load_model(small_head_folder if small_head else noisy_folder, dtype="float32", device="cpu")
    law_rows_do_not_feel_each_other(target, draft, prompts, sampling, beside=OFTEN)


@pytest.mark.parametrize("policy", [ALWAYS, DOUBTFUL])
@pytest.mark.parametrize("rule", [EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT])
def test_sampled_text_is_what_plain_sampling_writes(small_pair, rule, policy):
    law_exact_rules_write_what_plain_sampling_writes(*small_pair, [(1, 2, 1), (3,)], rule, beside=policy)


@pytest.mark.parametrize("sampling", [Sampling(), WARM])
def test_a_policy_that_never_looks_up_changes_nothing(target, noisy_draft, prompts, sampling):
    how = {"limits": Limits(24), "sampling": sampling, "row_seeds": range(len(prompts))}
    without, beside = (
        speculative_decode(target, noisy_draft, prompts, lookup_policy=policy, **how) for policy in (None, NEVER)
    )
    assert [text.token_ids for text in without] == [text.token_ids for text in beside]
    assert [[(one.start, one.accepted) for one in text.rounds] for text in without] == [
        [(one.start, one.accepted) for one in text.rounds] for text in beside
    ]


@pytest.mark.parametrize("sampling", [Sampling(), WARM])
def test_rounds_say_who_proposed(small_pair, sampling):
    """And the draft goes on as it would without: what it never read it reads before it proposes again."""
    target, draft = small_pair
    speculation, limits = Speculation(2), Limits(40)
    [text] = speculative_decode(
        target, draft, [(0, 1, 2, 3)], limits=limits, speculation=speculation, sampling=sampling, row_seeds=[0],
        lookup_policy=OFTEN,
    )  # fmt: skip
    written = [0, 1, 2, 3, *text.token_ids]
    for one in text.rounds:
        seen, room = written[: 4 + one.start], 40 - one.start - 1
        expected = new_record(OFTEN, seen).proposal(OFTEN, room)
        assert one.looked_up == bool(expected)
        assert one.proposed == (len(expected) or min(2, room))
        assert one.lookahead == (5 if one.looked_up else 2)
    assert {one.looked_up for one in text.rounds} == {False, True}


def test_the_target_as_its_own_draft_keeps_what_it_proposes_after_looking_up(target, prompts):
    """It would not, had it lost its place in the text."""
    decoded = speculative_decode(
        target, target, prompts, limits=Limits(60), speculation=Speculation(3), lookup_policy=OFTEN
    )
    plain = plain_decode(target, prompts, limits=Limits(60))
    assert [text.token_ids for text in decoded] == [text.token_ids for text in plain]
    drafted = [one for text in decoded for one in text.rounds if not one.looked_up]
    assert all(one.accepted == one.proposed for one in drafted)
    assert any(one.looked_up for text in decoded for one in text.rounds)

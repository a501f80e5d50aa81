"""Decoding with and without a draft, side by side: fair in its order, per token in its times, exact in its sums."""

from dataclasses import replace

import pytest

from eval.acceptance.counts import count_trace
from eval.acceptance.estimates import Resampling
from eval.answers.traces import Trace
from eval.decoding.ngram import NgramLookup
from eval.decoding.policy import ProposalPolicy
from eval.decoding.texts import Decoded, Round
from eval.scorecard.live import (
    DRAFT,
    Agreement,
    LiveAnswer,
    LiveWay,
    compare_with_replay,
    decode_live,
    decoding_speedup,
    whole_speedup,
)

RESAMPLING = Resampling(confidence=0.95, num_resamples=100, seed=17)
TEXT = (7, 8, 9, 10)
PLAIN = Decoded(TEXT, (), prefill_s=2.0, decode_s=8.0)
ROUNDS = (Round(0, 2, 2, 1, 1, 0.1, 0.2), Round(2, 2, 1, 1, 1, 0.1, 0.2))
SPECULATIVE = Decoded(TEXT, ROUNDS, prefill_s=3.0, decode_s=1.0)
LIVE = LiveAnswer(TEXT, PLAIN, SPECULATIVE, lookahead=2)
COUNTS = count_trace([(0, 1), (2, 1)], num_tokens=4, lookahead=2)
OTHER_COUNTS = count_trace([(0, 2), (3, 0)], num_tokens=4, lookahead=2)


@pytest.fixture
def decode(target, noisy_draft):
    """Decode eight prompts live; returns the answers and, for each, the models in the order in which they read it."""

    def decode(seed):
        begun = []

        def note(model, _args, kwargs):
            if kwargs["position_ids"][0, 0] == 0:
                begun.append(names[model])

        names = {target: "target", noisy_draft: "draft"}
        hooks = [model.register_forward_pre_hook(note, with_kwargs=True) for model in names]
        traces = [Trace(i, "", (), (5, 6, 10 + i), (), "", "length") for i in range(8)]
        ways = {DRAFT: LiveWay(noisy_draft, 3)}
        answers = decode_live(target, ways, traces, max_new_tokens=4, stop_ids=frozenset(), seed=seed)
        for hook in hooks:
            hook.remove()
        return answers, [tuple(begun[i : i + 3]) for i in range(0, len(begun), 3)]

    return decode


def test_each_prompt_is_decoded_both_ways_once_in_an_order_drawn_for_it(decode):
    answers, orders = decode(17)
    assert len(answers) == len(orders) == 8
    assert set(orders) == {("target", "target", "draft"), ("target", "draft", "target")}  # plain first, and last
    assert decode(17)[1] == orders
    assert decode(18)[1] != orders


def test_every_way_decodes_every_prompt_and_the_target_decides(target, noisy_draft):
    policy = ProposalPolicy(2, 0.3, (0.5, 0.5), 2.0, confidence=0.1)
    ways = {
        DRAFT: LiveWay(noisy_draft, 3),
        "text": LiveWay(NgramLookup(), 2),
        "both": LiveWay(noisy_draft, 1, policy),
    }
    traces = [Trace(i, "", (), (5, 6, 10 + i, 5, 6), (), "", "length") for i in range(4)]
    answers = decode_live(target, ways, traces, max_new_tokens=24, stop_ids=frozenset(), seed=17)
    for one in answers:
        assert one.lookahead == 3
        assert {one.by(name).token_ids for name in ways} == {one.plain.token_ids}
        assert not one.plain.rounds
    proposed = {name: [r.proposed for one in answers for r in one.by(name).rounds] for name in ways}
    assert {name: max(counts) for name, counts in proposed.items()} == {DRAFT: 3, "text": 2, "both": 2}
    rounds = [r for one in answers for r in one.by("both").rounds]
    assert {r.looked_up for r in rounds} == {True, False}


def test_ways_are_compared_with_plain_decoding_and_with_each_other():
    other = replace(SPECULATIVE, prefill_s=1.0, decode_s=4.0)
    answers = [replace(LIVE, others={"text": other})] * 2
    assert decoding_speedup(answers, RESAMPLING, "text").value == 8.0 / 4.0
    assert whole_speedup(answers, RESAMPLING, "text").value == 10.0 / 5.0
    assert whole_speedup(answers, RESAMPLING, over="text").value == 5.0 / 4.0  # the draft beside the text
    assert whole_speedup(answers, RESAMPLING, "text", over=DRAFT).value == 4.0 / 5.0


def test_times_are_per_token_of_each_text():
    """In half precision the two texts may part, and then one may be shorter."""
    shorter = replace(LIVE, speculative=replace(SPECULATIVE, token_ids=TEXT[:2]))
    assert decoding_speedup([LIVE], RESAMPLING).value == 8.0 / 1.0
    assert whole_speedup([LIVE], RESAMPLING).value == 10.0 / 4.0
    assert decoding_speedup([shorter], RESAMPLING).value == (8.0 / 4) / (1.0 / 2)
    assert whole_speedup([LIVE, shorter], RESAMPLING).value == (20.0 / 8) / (8.0 / 6)


def test_a_live_answer_has_the_counts_of_its_own_rounds():
    assert LIVE.counts == COUNTS != OTHER_COUNTS


def test_agreement_counts_the_prompts_that_agree():
    other = (7, 8, 0, 0)
    answers = [
        LIVE,
        replace(LIVE, recorded_ids=other),
        replace(LIVE, plain=replace(PLAIN, token_ids=other), recorded_ids=other),
        replace(LIVE, plain=replace(PLAIN, token_ids=other)),
        replace(LIVE, speculative=replace(SPECULATIVE, token_ids=other)),
    ]
    found = compare_with_replay(answers, [OTHER_COUNTS, COUNTS, COUNTS, COUNTS, COUNTS])
    assert (found.num_prompts, found.same_text, found.same_as_recorded, found.same_counts) == (5, 2, 2, 4)
    assert (found.loop.accepted, found.replay.accepted) == ((10, 0), (9, 1))


@pytest.mark.parametrize("fault", [None, "same_text", "same_as_recorded", "same_counts"])
def test_agreement_is_exact_only_if_every_prompt_agrees_in_every_way(fault):
    agreement = Agreement(3, 3, 3, 3, loop=COUNTS, replay=COUNTS)
    assert agreement.is_exact
    if fault:
        assert not replace(agreement, **{fault: 2}).is_exact

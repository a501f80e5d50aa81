"""Decoding with and without a draft, side by side: fair in its order, per token in its times, exact in its sums."""

from dataclasses import replace

import pytest

from eval.decoding.sampling import Decoded, Sampling, VerificationStep
from eval.decoding.speculative import NgramLookup
from eval.intervals import Resampling
from eval.replay import count_trace, replay_counts, replay_pair, rule_name
from eval.responses import Trace
from eval.wall_clock import (
    DRAFT,
    LEAST_P,
    LiveResponse,
    LiveWay,
    compare_with_replay,
    decode_live,
    decoding_speedup,
    steps_p_value,
    whole_speedup,
)

RESAMPLING = Resampling(confidence=0.95, num_resamples=100, seed=17)
TEXT = (7, 8, 9, 10)
PLAIN = Decoded(TEXT, (), prefill_s=2.0, decode_s=8.0)
ROUNDS = (VerificationStep(0, 2, 2, 1, 1, 0.1, 0.2), VerificationStep(2, 2, 1, 1, 1, 0.1, 0.2))
SPECULATIVE = Decoded(TEXT, ROUNDS, prefill_s=3.0, decode_s=1.0)
LIVE = LiveResponse(TEXT, PLAIN, SPECULATIVE, num_speculative_tokens=2)

COUNTS = count_trace([(0, 1), (2, 1)], num_tokens=4, num_speculative_tokens=2)
OTHER_COUNTS = count_trace([(0, 2), (3, 0)], num_tokens=4, num_speculative_tokens=2)


@pytest.fixture
def decode(target, noisy_draft):
    """Decode six prompts live; returns the responses and, for each, the models in the order in which they read it."""

    def decode(seed):
        begun = []

        def note(model, _args, kwargs):
            if kwargs["position_ids"][0, 0] == 0:
                begun.append(names[model])

        names = {target: "target", noisy_draft: "draft"}
        hooks = [model.register_forward_pre_hook(note, with_kwargs=True) for model in names]
        traces = [Trace(i, "", (), (5, 6, 10 + i), (), "", "length") for i in range(6)]
        ways = {DRAFT: LiveWay(noisy_draft, 3)}
        responses = decode_live(
            target, ways, traces, max_new_tokens=3, stop_ids=frozenset(), sampling=Sampling(), seed=seed
        )
        for hook in hooks:
            hook.remove()
        return responses, [tuple(begun[i : i + 3]) for i in range(0, len(begun), 3)]

    return decode


def test_each_prompt_is_decoded_both_ways_once_in_an_order_drawn_for_it(decode):
    responses, orders = decode(17)
    assert len(responses) == len(orders) == 6
    assert set(orders) == {("target", "target", "draft"), ("target", "draft", "target")}  # plain first, and last
    assert decode(17)[1] == orders
    assert decode(18)[1] != orders


def test_ways_are_compared_with_plain_decoding_and_with_each_other():
    other = replace(SPECULATIVE, prefill_s=1.0, decode_s=4.0)
    responses = [replace(LIVE, others={"text": other})] * 2
    assert decoding_speedup(responses, RESAMPLING, "text").value == 8.0 / 4.0
    assert whole_speedup(responses, RESAMPLING, "text").value == 10.0 / 5.0
    assert whole_speedup(responses, RESAMPLING, over="text").value == 5.0 / 4.0  # the draft beside the text
    assert whole_speedup(responses, RESAMPLING, "text", over=DRAFT).value == 4.0 / 5.0


def test_times_are_per_token_of_each_text():
    """In half precision the two texts may part, and then one may be shorter."""
    shorter = replace(LIVE, speculative=replace(SPECULATIVE, token_ids=TEXT[:2]))
    assert decoding_speedup([LIVE], RESAMPLING).value == 8.0 / 1.0
    assert whole_speedup([LIVE], RESAMPLING).value == 10.0 / 4.0
    assert decoding_speedup([shorter], RESAMPLING).value == (8.0 / 4) / (1.0 / 2)
    assert whole_speedup([LIVE, shorter], RESAMPLING).value == (20.0 / 8) / (8.0 / 6)


def test_a_live_response_has_the_counts_of_its_own_steps():
    assert LIVE.counts == COUNTS != OTHER_COUNTS


def test_agreement_counts_the_prompts_that_agree():
    other = (7, 8, 0, 0)
    responses = [
        LIVE,
        replace(LIVE, recorded_ids=other),
        replace(LIVE, plain=replace(PLAIN, token_ids=other), recorded_ids=other),
        replace(LIVE, plain=replace(PLAIN, token_ids=other)),
        replace(LIVE, speculative=replace(SPECULATIVE, token_ids=other)),
    ]
    found = compare_with_replay(responses, [OTHER_COUNTS, COUNTS, COUNTS, COUNTS, COUNTS], is_greedy=True)
    assert (found.same_text, found.same_as_recorded, found.same_counts) == (2, 2, 4)
    assert (found.loop.accepted, found.replay.accepted) == (10, 10)
    assert not found.exact


@pytest.mark.parametrize("fault", [None, "plain", "recorded_ids", "counts"])
def test_agreement_is_exact_only_if_every_prompt_agrees_in_every_way(fault):
    faults = {"plain": replace(PLAIN, token_ids=(7, 8, 0, 0)), "recorded_ids": (7, 8, 0, 0)}
    last = replace(LIVE, **{fault: faults[fault]}) if fault in faults else LIVE
    expected = [COUNTS, COUNTS, OTHER_COUNTS if fault == "counts" else COUNTS]
    assert compare_with_replay([LIVE, LIVE, last], expected, is_greedy=True).exact is (fault is None)


def counts_of(steps):
    """As many steps, of which none keeps anything."""
    return count_trace([(start, 0) for start in range(steps)], num_tokens=steps, num_speculative_tokens=2)


def test_sampled_steps_agree_as_far_as_chance_allows():
    expected = [counts_of(20)] * 8
    assert steps_p_value(expected, expected) == 1
    assert steps_p_value([counts_of(19)] * 8, expected) == 0  # the same difference everywhere is no chance
    around = [counts_of(20 + one) for one in (3, -3, 2, -2, 1, -1, 4, -4)]
    assert steps_p_value(around, expected) == pytest.approx(1)
    fewer = [counts_of(14 + one) for one in (0, 1, 0, -1, 0, 1, 0, -1)]
    assert steps_p_value(fewer, expected) < LEAST_P
    assert steps_p_value([counts_of(19)], [counts_of(20)]) == 1  # of one prompt nothing can be tested


def test_sampled_live_texts_are_held_against_a_replay_of_themselves(decode_sampled):
    responses, expected = decode_sampled
    agreement = compare_with_replay(responses, expected, is_greedy=False)
    assert agreement.p_value > LEAST_P
    assert agreement.exact
    assert agreement.same_text < len(responses)  # by rejection the draft's draws decide too
    assert 0 < agreement.loop.accepted < agreement.loop.proposed
    wrong = compare_with_replay(responses, [counts_of(40)] * len(responses), is_greedy=False)
    assert not wrong.exact


@pytest.fixture
def decode_sampled(target, noisy_draft):
    """Ten prompts decoded live with every sampling setting, and what replay expects of each text."""
    sampling = Sampling(0.9, top_p=0.95, top_k=40, repetition_penalty=1.1)
    traces = [Trace(i, "", (), (5, 6, 10 + i, 5, 6), (), "", "length") for i in range(10)]
    ways = {DRAFT: LiveWay(noisy_draft, 3), "text": LiveWay(NgramLookup(), 2)}
    how = {"max_new_tokens": 12, "stop_ids": frozenset(), "sampling": sampling, "seed": 5}
    responses = decode_live(target, ways, traces, **how)
    for one in responses:
        assert one.by("text").token_ids == one.plain.token_ids  # looked up: the target's draws alone
        assert not one.plain.steps
        assert one.num_speculative_tokens == 3
    proposed = {name: [each.proposed for one in responses for each in one.by(name).steps] for name in ways}
    assert {name: max(counts) for name, counts in proposed.items()} == {DRAFT: 3, "text": 2}
    rule, expected = rule_name(sampling.temperature), []
    for response, trace in zip(responses, traces, strict=True):
        ids = response.speculative.token_ids
        replay = replay_pair(target, noisy_draft, trace.prompt_ids, ids, sampling=sampling)
        expected.append(replay_counts(replay.rules[rule].accept, num_speculative_tokens=3))
    return responses, expected

"""A draft without a model finds the latest place of the longest run, and is as lossless as any other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.decoding.sampling import EXACT_GREEDY_DRAFT, Limits, Sampling, Speculation
from eval.decoding.speculative import NgramLookup, speculative_decode
from tests.eval.decoding.laws import (
    WARM,
    law_greedy_text_is_the_targets,
    law_rows_do_not_feel_each_other,
    law_sampled_texts_are_the_targets,
)

LOOKUP = NgramLookup()


def brute_force(ids, longest, count):
    """The definition, place by place."""
    for length in range(min(longest, len(ids)), 0, -1):
        for place in range(len(ids) - length - 1, -1, -1):
            if ids[place : place + length] == ids[len(ids) - length :]:
                return ids[place + length :][:count]
    return []


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=24), longest=st.integers(1, 5), count=st.integers(0, 6))
def test_it_is_its_definition(ids, longest, count):
    assert NgramLookup(longest).continuation(ids, count) == brute_force(ids, longest, count)


def test_its_texts_are_the_targets(small_pair):
    law_sampled_texts_are_the_targets(small_pair[0], LOOKUP)


@pytest.mark.parametrize("num_speculative_tokens", [1, 4])
def test_greedy_text_is_the_targets(target, prompts, num_speculative_tokens):
    law_greedy_text_is_the_targets(
        target, LOOKUP, prompts, Limits(40, frozenset({2})), num_speculative_tokens=num_speculative_tokens
    )


@pytest.mark.parametrize("sampling", [WARM, Sampling(0.0, repetition_penalty=1.4)])
def test_rows_do_not_feel_each_other(target, prompts, sampling):
    law_rows_do_not_feel_each_other(target, LOOKUP, prompts, sampling)


@pytest.mark.parametrize("sampling", [Sampling(), WARM])
def test_what_was_not_found_was_not_proposed(small_pair, sampling):
    """Rounds say how much was found; the text of a known target repeats itself, and is then found whole."""
    target, _ = small_pair
    [text] = speculative_decode(
        target,
        LOOKUP,
        [(0, 1, 2, 3)],
        limits=Limits(40),
        speculation=Speculation(4),
        sampling=sampling,
        row_seeds=[0],
    )
    written = [0, 1, 2, 3, *text.token_ids]
    assert text.rule == EXACT_GREEDY_DRAFT
    assert text.steps[0].proposed == 0
    for one in text.steps:
        seen, room = written[: 4 + one.start], min(4, 40 - one.start - 1)
        proposed = LOOKUP.continuation(seen, room)
        assert one.proposed == len(proposed)
        assert proposed[: one.accepted] == written[len(seen) :][: one.accepted]
    assert sum(one.accepted + 1 for one in text.steps) == 40

"""Prompt lookup in front of a draft: decoding stays lossless whoever proposes."""

import pytest
import torch

from eval.decoding.sampling import (
    EXACT_GREEDY_DRAFT,
    EXACT_SAMPLED_DRAFT,
    REJECTION,
    Limits,
    Sampling,
    Seeds,
    Speculation,
    Text,
    window,
)
from eval.decoding.speculative import DecodingRequest, LookupFirst, NgramLookup, Streams, speculative_decode
from eval.models import load_model
from tests.eval.decoding.laws import (
    WARM,
    law_exact_rules_write_what_plain_sampling_writes,
    law_greedy_text_is_the_targets,
    law_rows_do_not_feel_each_other,
    law_sampled_texts_are_the_targets,
)

ALWAYS, OFTEN = LookupFirst(1, 3), LookupFirst(2, 5)


@pytest.mark.parametrize("rule", [REJECTION, EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT])
def test_sampled_texts_are_the_targets(small_pair, rule):
    law_sampled_texts_are_the_targets(*small_pair, rule=rule, beside=ALWAYS)


@pytest.mark.parametrize(
    ("policy", "num_speculative_tokens", "small_head"), [(ALWAYS, 1, True), (ALWAYS, 4, False), (OFTEN, 4, True)]
)
def test_greedy_text_is_the_targets(
    target, noisy_folder, small_head_folder, prompts, policy, num_speculative_tokens, small_head
):
    draft = load_model(small_head_folder if small_head else noisy_folder, dtype="float32", device="cpu")
    law_greedy_text_is_the_targets(
        target, draft, prompts, Limits(24, frozenset({2})), num_speculative_tokens, beside=policy
    )


@pytest.mark.parametrize(
    ("sampling", "small_head"), [(Sampling(), True), (WARM, True), (Sampling(0.0, repetition_penalty=1.4), False)]
)
def test_rows_do_not_feel_each_other(target, noisy_folder, small_head_folder, prompts, sampling, small_head):
    draft = load_model(small_head_folder if small_head else noisy_folder, dtype="float32", device="cpu")
    law_rows_do_not_feel_each_other(target, draft, prompts, sampling, beside=OFTEN)


@pytest.mark.parametrize(("rule", "policy"), [(EXACT_GREEDY_DRAFT, ALWAYS), (EXACT_SAMPLED_DRAFT, OFTEN)])
def test_sampled_text_is_what_plain_sampling_writes(small_pair, rule, policy):
    law_exact_rules_write_what_plain_sampling_writes(*small_pair, [(1, 2, 1), (3,)], rule, beside=policy)


@pytest.mark.parametrize("sampling", [Sampling(), WARM])
def test_steps_say_who_proposed(small_pair, sampling):
    """And the draft goes on as it would without: what it never read it reads before it proposes again."""
    target, draft = small_pair
    speculation, limits = Speculation(2), Limits(40)
    [text] = speculative_decode(
        target, draft, [(0, 1, 2, 3)], limits=limits, speculation=speculation, sampling=sampling, row_seeds=[0],
        lookup_first=OFTEN,
    )  # fmt: skip
    written = [0, 1, 2, 3, *text.token_ids]
    for one in text.steps:
        seen, room = written[: 4 + one.start], 40 - one.start - 1
        expected = NgramLookup(2, 2).continuation(seen, min(5, room))
        assert one.looked_up == bool(expected)
        assert one.proposed == (len(expected) or min(2, room))
        assert one.num_speculative_tokens == (5 if one.looked_up else 2)
    assert {one.looked_up for one in text.steps} == {False, True}


def test_rows_that_end_have_draws_next_to_a_row_that_copies():
    """A row with 9 of 10 tokens takes part in a step that verifies 48 proposed tokens of another."""
    wanted = DecodingRequest([(1,), (2,)], Limits(10), Sampling(), Speculation(2), lookup_first=LookupFirst(1, 48))
    streams = Streams.of(wanted, Seeds(), [0, 1], torch.device("cpu"))
    texts = [Text(0, (1,)), Text(1, (2,))]
    texts[0].extend([3] * 9, wanted.limits)
    assert window(streams.accept_BD, texts, 48).shape == (2, 48)
    assert window(streams.target_BD, texts, 49).shape == (2, 49)

"""Speculative decoding is lossless by any draft, and by lookup: in distribution, token for token, row by row."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
from eval.decoding.speculative import (
    DecodingRequest,
    LookupFirst,
    NgramLookup,
    Streams,
    plain_decode,
    speculative_decode,
)
from eval.models import load_model
from tests.eval.decoding.laws import (
    ROWS,
    WARM,
    law_exact_rules_write_what_plain_sampling_writes,
    law_greedy_text_is_the_targets,
    law_rows_do_not_feel_each_other,
    law_sampled_texts_are_the_targets,
    law_the_target_accepts_its_own_proposals,
    require_same_law,
    text_chances,
)
from tests.rejections import rejects

ALL = Sampling(1.3, top_p=0.9, top_k=3, min_p=0.1, repetition_penalty=1.3)


@pytest.mark.parametrize(
    ("rule", "num_speculative_tokens", "sampling"),
    [
        (REJECTION, 1, Sampling(1.0, repetition_penalty=1.8)),
        (REJECTION, 3, ALL),
        (EXACT_SAMPLED_DRAFT, 5, Sampling(1.6)),
        (EXACT_GREEDY_DRAFT, 2, Sampling(1.2, top_p=0.8)),
    ],
)
def test_every_lossless_rule_writes_the_targets_texts(small_pair, rule, num_speculative_tokens, sampling):
    law_sampled_texts_are_the_targets(
        *small_pair, rule=rule, num_speculative_tokens=num_speculative_tokens, sampling=sampling, seed=1
    )


def test_plain_sampling_writes_the_targets_texts(small_pair):
    """The null of the tests above: the same statistic on texts that need no proof."""
    target, _ = small_pair
    decoded = plain_decode(target, [(1,)] * ROWS, limits=Limits(4), sampling=Sampling(0.7), row_seeds=range(ROWS))
    require_same_law([text.token_ids for text in decoded], text_chances(target, Sampling(0.7)))


@pytest.mark.parametrize(("rule", "sampling"), [(EXACT_SAMPLED_DRAFT, ALL), (EXACT_GREEDY_DRAFT, Sampling(0.8))])
def test_exact_rules_write_what_plain_sampling_writes(target, noisy_draft, prompts, rule, sampling):
    law_exact_rules_write_what_plain_sampling_writes(target, noisy_draft, prompts, rule, sampling)


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        (REJECTION, ALL),
        (EXACT_SAMPLED_DRAFT, Sampling(0.8)),
        (EXACT_GREEDY_DRAFT, ALL),
        (REJECTION, Sampling(0.0, repetition_penalty=1.4)),
    ],
)
def test_rows_of_a_batch_do_not_feel_each_other(target, noisy_draft, prompts, rule, sampling):
    law_rows_do_not_feel_each_other(target, noisy_draft, prompts, sampling, rule)


@pytest.mark.parametrize(("num_speculative_tokens", "sampling"), [(1, Sampling(0.9)), (3, Sampling(0.0)), (8, ALL)])
def test_the_target_accepts_its_own_proposals(target, prompts, sampling, num_speculative_tokens):
    law_the_target_accepts_its_own_proposals(target, prompts, sampling, num_speculative_tokens=num_speculative_tokens)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_greedy_text_is_the_targets_in_any_batch(target, noisy_draft, data):
    """Any lengths, any num_speculative_tokens, stop tokens anywhere, any limit."""
    rows = data.draw(st.integers(1, 5))
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=rows, max_size=rows))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    prompts = [torch.randint(0, 259, (length,), generator=generator).tolist() for length in lengths]
    length = data.draw(st.integers(1, 20))
    [written] = plain_decode(target, prompts[:1], limits=Limits(length))
    stops = data.draw(st.sets(st.sampled_from([2, 260, *written.token_ids]), max_size=3))
    k = data.draw(st.integers(1, 20))
    law_greedy_text_is_the_targets(target, noisy_draft, prompts, Limits(length, frozenset(stops)), k)


def test_streams_are_apart(small_pair):
    """Another seed of one stream changes the texts; the target's alone decides those of an exact rule."""
    target, draft = small_pair
    written = {}
    for name in ("same", "draft", "accept", "target"):
        seeds = dataclasses.replace(Seeds(), **({} if name == "same" else {name: 99}))
        for rule in ("rejection", "exact_sampled_draft"):
            decoded = speculative_decode(
                target,
                draft,
                [(1,)] * 20,
                limits=Limits(8),
                speculation=Speculation(3, rule=rule),
                sampling=Sampling(1.0),
                seeds=seeds,
                row_seeds=range(20),
            )
            written[name, rule] = [text.token_ids for text in decoded]
    for name in ("draft", "accept", "target"):
        assert written[name, "rejection"] != written["same", "rejection"]
    assert written["draft", "exact_sampled_draft"] == written["same", "exact_sampled_draft"]
    assert written["accept", "exact_sampled_draft"] == written["same", "exact_sampled_draft"]
    assert written["target", "exact_sampled_draft"] != written["same", "exact_sampled_draft"]


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match=REJECTION):
        Speculation(rule="reject")


def test_an_encoder_decoder_decodes_by_the_same_laws(translators, prompts):
    target, draft = translators
    law_greedy_text_is_the_targets(target, draft, prompts[:5], Limits(12, frozenset(range(0, 264, 9))))
    law_the_target_accepts_its_own_proposals(target, prompts[1:3])
    law_exact_rules_write_what_plain_sampling_writes(target, draft, prompts[1:4], EXACT_GREEDY_DRAFT, Sampling(20.0))


def test_a_family_that_takes_rows_drafts_for_one_that_does_not(make_checkpoint, target, prompts):
    bloom = load_model(make_checkpoint(seed=3, model_type="bloom"), dtype="float32", device="cpu")
    law_greedy_text_is_the_targets(bloom, target, prompts[:4], Limits(8, frozenset({2})))


ROPES = {
    "linear": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "dynamic": {"factor": 2.0},
    "longrope": {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 16},
}


@pytest.mark.parametrize("kind", ROPES)
def test_rotary_scaling_leaves_each_text_its_own(make_checkpoint, noisy_draft, kind):
    """In a batch, alone, with a draft and in transformers; where that cannot be, the batch is rejected."""
    rope = {"rope_type": kind, "rope_theta": 10000.0, **ROPES[kind]}
    model: Any = load_model(
        make_checkpoint(seed=5, rope_parameters=rope, max_position_embeddings=32), dtype="float32", device="cpu"
    )
    prompts = [[1, *range(60, 69)], [1, *range(70, 91)]]
    limits = Limits(8)
    if kind in ("dynamic", "longrope"):
        with rejects(kind):
            plain_decode(model, [[1, *range(60, 90)], prompts[0]], limits=limits)
        prompts = [prompts[1]] if kind == "longrope" else [prompt[:20] for prompt in prompts]
    together = plain_decode(model, prompts, limits=limits)
    drafted = speculative_decode(model, noisy_draft, prompts, limits=limits, speculation=Speculation(3))
    for prompt, text, other in zip(prompts, together, drafted, strict=True):
        [alone] = plain_decode(model, [prompt], limits=limits)
        theirs = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=-1)
        assert text.token_ids == other.token_ids == alone.token_ids == tuple(theirs[0, len(prompt) :].tolist())


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
def test_greedy_text_is_the_targets_by_lookup(target, prompts, num_speculative_tokens):
    law_greedy_text_is_the_targets(
        target, LOOKUP, prompts, Limits(40, frozenset({2})), num_speculative_tokens=num_speculative_tokens
    )


@pytest.mark.parametrize("sampling", [WARM, Sampling(0.0, repetition_penalty=1.4)])
def test_rows_do_not_feel_each_other_by_lookup(target, prompts, sampling):
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


ALWAYS, OFTEN = LookupFirst(1, 3), LookupFirst(2, 5)


@pytest.mark.parametrize("rule", [REJECTION, EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT])
def test_sampled_texts_are_the_targets(small_pair, rule):
    law_sampled_texts_are_the_targets(*small_pair, rule=rule, beside=ALWAYS)


@pytest.mark.parametrize(
    ("policy", "num_speculative_tokens", "small_head"), [(ALWAYS, 1, True), (ALWAYS, 4, False), (OFTEN, 4, True)]
)
def test_greedy_text_is_the_targets_before_a_draft(
    target, noisy_folder, small_head_folder, prompts, policy, num_speculative_tokens, small_head
):
    draft = load_model(small_head_folder if small_head else noisy_folder, dtype="float32", device="cpu")
    law_greedy_text_is_the_targets(
        target, draft, prompts, Limits(24, frozenset({2})), num_speculative_tokens, beside=policy
    )


@pytest.mark.parametrize(
    ("sampling", "small_head"), [(Sampling(), True), (WARM, True), (Sampling(0.0, repetition_penalty=1.4), False)]
)
def test_rows_do_not_feel_each_other_before_a_draft(
    target, noisy_folder, small_head_folder, prompts, sampling, small_head
):
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

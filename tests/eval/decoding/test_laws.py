"""Speculative decoding is lossless: in distribution, token for token where it can be, row by row in any batch."""

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
)
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.models import load_model
from tests.eval.decoding.laws import (
    ROWS,
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

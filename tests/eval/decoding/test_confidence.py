"""A draft that proposes where it is sure: rounds end at its doubts and nowhere else, and it never loses its place."""

from dataclasses import replace

import pytest

from eval.acceptance.replay import answer_logits
from eval.decoding.rules import LOSSLESS
from eval.decoding.sampling import Sampling, confidence_of
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.decoding.texts import Limits, Speculation
from eval.models.loading import load_model
from eval.proposing.policy import ProposalPolicy
from eval.proposing.stopping import Stopping
from tests.eval.decoding.laws import (
    WARM,
    law_greedy_text_is_the_targets,
    law_rows_do_not_feel_each_other,
    require_same_law,
    text_chances,
)

LIMITS = Limits(40, frozenset({2}))
NEVER_LOOKED_UP = ProposalPolicy(3, 2.0, (0.5, 0.5), 4.0)
OFTEN_LOOKED_UP = ProposalPolicy(3, 0.3, (0.4, 0.7), 4.0)


def confidence_along(draft, prompt, text):
    return confidence_of(answer_logits(draft, prompt, text.token_ids)).tolist()


@pytest.fixture(scope="module")
def middling(target, noisy_draft, prompts):
    """A confidence that half of the positions have, and no position nearly."""
    texts = plain_decode(target, prompts, limits=LIMITS)
    found = sorted(
        value
        for prompt, text in zip(prompts, texts, strict=True)
        for value in confidence_along(noisy_draft, prompt, text)
    )
    middle = len(found) // 2
    gaps = [(found[at + 1] - found[at], at) for at in range(middle - 8, middle + 8)]
    _, at = max(gaps)
    return (found[at] + found[at + 1]) / 2


@pytest.mark.parametrize("policy", [NEVER_LOOKED_UP, OFTEN_LOOKED_UP])
@pytest.mark.parametrize("lookahead", [1, 3])
def test_rounds_end_where_the_draft_doubts_and_nowhere_else(target, noisy_draft, prompts, middling, policy, lookahead):
    decoded = speculative_decode(
        target, noisy_draft, prompts, limits=LIMITS, speculation=Speculation(lookahead),
        lookup_policy=replace(policy, confidence=middling),
    )  # fmt: skip
    proposed = set()
    for prompt, text in zip(prompts, decoded, strict=True):
        sure = [value >= middling for value in confidence_along(noisy_draft, prompt, text)]
        for one in text.rounds:
            if one.looked_up:
                continue
            proposed.add(one.proposed)
            kept = sure[one.start : one.start + one.accepted]
            assert all(kept)
            room = min(lookahead, LIMITS.max_new_tokens - one.start - 1)
            if one.accepted == one.proposed < room and one.start + one.proposed < len(sure):
                assert not sure[one.start + one.proposed]
            if one.accepted < one.proposed:
                assert sure[one.start + one.accepted]
    assert proposed >= {0, lookahead}


@pytest.mark.parametrize("lookahead", [1, 4])
@pytest.mark.parametrize("policy", [NEVER_LOOKED_UP, OFTEN_LOOKED_UP])
@pytest.mark.parametrize("small_head", [False, True])
def test_greedy_text_is_the_targets(
    target, noisy_folder, small_head_folder, prompts, middling, policy, lookahead, small_head
):
    draft = load_model(small_head_folder if small_head else noisy_folder, dtype="float32", device="cpu")
    sure = replace(policy, confidence=middling)
    law_greedy_text_is_the_targets(target, draft, prompts, LIMITS, lookahead, beside=sure)


@pytest.mark.parametrize("sampling", [Sampling(), WARM, Sampling(0.0, repetition_penalty=1.4)])
def test_rows_do_not_feel_each_other(target, noisy_draft, prompts, middling, sampling):
    sure = replace(OFTEN_LOOKED_UP, confidence=middling)
    law_rows_do_not_feel_each_other(target, noisy_draft, prompts, sampling, beside=sure)


@pytest.mark.parametrize("lookahead", [1, 3])
@pytest.mark.parametrize("policy", [NEVER_LOOKED_UP, OFTEN_LOOKED_UP])
def test_the_target_as_its_own_draft_keeps_all_it_proposes(target, prompts, middling, policy, lookahead):
    """It would not, had it lost its place where it doubted."""
    decoded = speculative_decode(
        target, target, prompts, limits=Limits(60), speculation=Speculation(lookahead),
        lookup_policy=replace(policy, confidence=middling),
    )  # fmt: skip
    drafted = [one for text in decoded for one in text.rounds if not one.looked_up]
    assert all(one.accepted == one.proposed for one in drafted)
    assert {one.proposed for one in drafted} >= {0, lookahead}


def test_a_draft_that_is_never_sure_proposes_nothing(target, noisy_draft, prompts):
    policy = replace(NEVER_LOOKED_UP, confidence=1.0)
    decoded = speculative_decode(target, noisy_draft, prompts, limits=LIMITS, lookup_policy=policy)
    plain = plain_decode(target, prompts, limits=LIMITS)
    assert [text.token_ids for text in decoded] == [text.token_ids for text in plain]
    assert all(one.proposed == 0 for text in decoded for one in text.rounds)
    assert [len(text.rounds) for text in decoded] == [len(text.token_ids) for text in plain]


def test_an_adaptive_lookahead_is_refused(target, noisy_draft):
    policy = replace(NEVER_LOOKED_UP, confidence=0.5)
    with pytest.raises(ValueError, match="an adaptive lookahead learns from whole rounds"):
        speculative_decode(
            target, noisy_draft, [[1]], limits=LIMITS, speculation=Speculation(2, adaptive=True), lookup_policy=policy
        )


STOPPINGS = {
    "before doubt": Stopping(confidence=0.1),
    "after doubt": Stopping(confidence=0.1, proposes_doubted=True),
    "expected gain": Stopping(chance=0.05),
}


@pytest.mark.parametrize("rule", [*LOSSLESS, "adaptive"])
@pytest.mark.parametrize("stopping", STOPPINGS.values(), ids=STOPPINGS)
def test_sampled_texts_are_the_targets_however_rounds_end(small_pair, rule, stopping):
    """In distribution, over all texts of four tokens."""
    stopping = replace(stopping, confidence=stopping.confidence and 0.5, chance=stopping.chance and 0.3)
    speculation = Speculation(3, rule=rule, stopping=stopping) if rule in LOSSLESS else Speculation(2, adaptive=True)
    decoded = speculative_decode(
        *small_pair, [(1,)] * 4000, limits=Limits(4), speculation=speculation, sampling=WARM, row_seeds=range(4000)
    )
    assert len({one.proposed for text in decoded for one in text.rounds}) > 1
    require_same_law([text.token_ids for text in decoded], text_chances(small_pair[0], WARM))


@pytest.mark.parametrize("stopping", STOPPINGS.values(), ids=STOPPINGS)
@pytest.mark.parametrize("policy", [None, OFTEN_LOOKED_UP])
def test_the_target_as_its_own_draft_never_loses_its_place(target, prompts, stopping, policy):
    decoded = speculative_decode(
        target, target, prompts, limits=LIMITS, speculation=Speculation(3, stopping=stopping), lookup_policy=policy
    )
    plain = plain_decode(target, prompts, limits=LIMITS)
    assert [text.token_ids for text in decoded] == [text.token_ids for text in plain]
    drafted = [one for text in decoded for one in text.rounds if not one.looked_up]
    assert all(one.accepted == one.proposed for one in drafted)
    assert len({one.proposed for one in drafted}) > 1

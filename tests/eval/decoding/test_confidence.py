"""A draft that proposes where it is sure: steps end at its doubts and nowhere else, and it never loses its place."""

import pytest

from eval.decoding.kv_cache import RowSequencer
from eval.decoding.sampling import LOSSLESS, Limits, Speculation, confidence_of
from eval.decoding.speculative import LookupFirst, plain_decode, speculative_decode
from eval.models import load_model
from eval.replay import response_logits
from tests.eval.decoding.laws import ROWS, WARM, require_same_law, text_chances
from tests.rejections import rejects

LIMITS = Limits(24, frozenset({2}))
OFTEN = LookupFirst(2, 3)


def confidence_along(draft, prompt, text):
    return confidence_of(response_logits(draft, prompt, text.token_ids)).tolist()


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


@pytest.mark.parametrize(("lookup", "k"), [(None, 1), (OFTEN, 3)])
def test_steps_end_where_the_draft_doubts_and_nowhere_else(target, noisy_draft, prompts, middling, lookup, k):
    decoded = speculative_decode(
        target, noisy_draft, prompts, limits=LIMITS, speculation=Speculation(k, draft_p_min=middling),
        lookup_first=lookup,
    )  # fmt: skip
    proposed = set()
    for prompt, text in zip(prompts, decoded, strict=True):
        sure = [value >= middling for value in confidence_along(noisy_draft, prompt, text)]
        for one in text.steps:
            if one.looked_up:
                continue
            proposed.add(one.proposed)
            kept = sure[one.start : one.start + one.accepted]
            assert all(kept)
            room = min(k, LIMITS.max_new_tokens - one.start - 1)
            if one.accepted == one.proposed < room and one.start + one.proposed < len(sure):
                assert not sure[one.start + one.proposed]
            if one.accepted < one.proposed:
                assert sure[one.start + one.accepted]
    assert proposed >= {0, k}


@pytest.mark.parametrize(("lookup", "small_head"), [(None, False), (OFTEN, True)])
def test_greedy_text_is_the_targets(target, noisy_folder, small_head_folder, prompts, middling, lookup, small_head):
    draft = load_model(small_head_folder if small_head else noisy_folder, dtype="float32", device="cpu")
    speculation = Speculation(4, draft_p_min=middling)
    how = {"limits": LIMITS, "speculation": speculation, "lookup_first": lookup}
    decoded = speculative_decode(target, draft, prompts, **how)
    plain = plain_decode(target, prompts, limits=LIMITS)
    assert [text.token_ids for text in decoded] == [text.token_ids for text in plain]
    for prompt, text in list(zip(prompts, decoded, strict=True))[::4]:  # rows do not feel each other
        [alone] = speculative_decode(target, draft, [prompt], **how)
        assert (alone.token_ids, [(one.start, one.proposed, one.accepted) for one in alone.steps]) == (
            text.token_ids,
            [(one.start, one.proposed, one.accepted) for one in text.steps],
        )


@pytest.mark.parametrize(("lookup", "k"), [(None, 1), (OFTEN, 3)])
def test_the_target_as_its_own_draft_keeps_all_it_proposes(target, prompts, middling, lookup, k):
    """It would not, had it lost its place where it doubted."""
    decoded = speculative_decode(
        target, target, prompts, limits=Limits(40), speculation=Speculation(k, draft_p_min=middling),
        lookup_first=lookup,
    )  # fmt: skip
    drafted = [one for text in decoded for one in text.steps if not one.looked_up]
    assert all(one.accepted == one.proposed for one in drafted)
    assert {one.proposed for one in drafted} >= {0, k}


def test_the_draft_reads_nothing_once_no_row_wants_another_token(target, noisy_draft, prompts, middling, monkeypatch):
    """Rows that end early want fewer tokens than rows in doubt were going to."""
    fed = []
    feed = RowSequencer.feed

    def counted(self, ids_BT, spans, **how):
        fed.append((self.model is noisy_draft, sum(count for _, count in spans)))
        return feed(self, ids_BT, spans, **how)

    monkeypatch.setattr(RowSequencer, "feed", counted)
    speculation = Speculation(4, draft_p_min=middling)
    for length in range(2, 12):
        speculative_decode(target, noisy_draft, prompts, limits=Limits(length), speculation=speculation)
    assert all(count for is_draft, count in fed if is_draft)


def test_a_threshold_that_means_nothing_is_rejected():
    with rejects("draft_p_min", error=ValueError):
        Speculation(2, draft_p_min=1.1)


@pytest.mark.parametrize("rule", LOSSLESS)
def test_sampled_texts_are_the_targets_however_steps_end(small_pair, rule):
    """In distribution, over all texts of four tokens."""
    speculation = Speculation(3, rule=rule, draft_p_min=0.5)
    decoded = speculative_decode(
        *small_pair, [(1,)] * ROWS, limits=Limits(4), speculation=speculation, sampling=WARM, row_seeds=range(ROWS)
    )
    assert len({one.proposed for text in decoded for one in text.steps}) > 1
    require_same_law([text.token_ids for text in decoded], text_chances(small_pair[0], WARM))

"""What looking up alone would do along recorded texts is what the loop does, greedy and sampled, to the round."""

from collections import Counter

import pytest

from eval.acceptance.speedup import StepTimes
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import speculative_decode
from eval.decoding.texts import Limits, Speculation
from eval.policies.lookup_alone import best_lookup, lookup_rounds
from eval.proposing.ngram import NgramLookup

TEXT = 60
STEPS = StepTimes(1.0, 0.1, 0.14, {lookahead: 1 + 0.02 * lookahead for lookahead in range(1, 6)})


def decoded(target, prompts, lookahead, temperature, stop_ids=frozenset()):
    return speculative_decode(
        target,
        NgramLookup(),
        prompts,
        limits=Limits(TEXT, stop_ids),
        speculation=Speculation(lookahead),
        sampling=Sampling(temperature),
        row_seeds=range(len(prompts)),
    )


@pytest.mark.parametrize("temperature", [0.0, 0.2])
@pytest.mark.parametrize("lookahead", [1, 2, 5])
def test_the_loop_takes_these_rounds(target, prompts, lookahead, temperature):
    free = decoded(target, prompts, lookahead, temperature)
    some = next(t for t in sorted(set(free[0].token_ids)) if not all(t in text.token_ids for text in free))
    looked_up = 0
    for text, prompt in zip(decoded(target, prompts, lookahead, temperature, {some}), prompts, strict=True):
        found = lookup_rounds(prompt, text.token_ids, lookahead=lookahead, max_new_tokens=TEXT)
        assert found.looked_up == Counter(one.proposed for one in text.rounds)
        assert found.tokens == len(text.token_ids)
        assert found.tau == len(text.token_ids) / len(text.rounds)
        looked_up += sum(one.accepted for one in text.rounds)
    assert looked_up > 0


def test_a_text_that_repeats_itself_is_looked_up_whole():
    assert lookup_rounds([1, 2, 3, 1, 2], [3, 1, 2, 3, 9], lookahead=2, max_new_tokens=5).looked_up == {2: 1, 1: 1}


def test_the_last_token_is_the_targets_own():
    """A stop token that is proposed too is not taken from the proposal, and nothing stands behind it."""
    assert lookup_rounds([1, 2, 3, 1], [2, 3], lookahead=4, max_new_tokens=8).looked_up == {3: 1}


def test_the_best_lookahead_is_the_one_that_promises_most():
    texts = [([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7])]
    lookahead, rounds = best_lookup(texts, STEPS, max_new_tokens=20)
    speeds = {
        count: lookup_rounds(*texts[0], lookahead=count, max_new_tokens=20).speedup(count, STEPS)
        for count in STEPS.verify_s
    }
    assert lookahead == max(speeds, key=speeds.__getitem__) > 1
    assert rounds.speedup(lookahead, STEPS) == speeds[lookahead]
    dear = StepTimes(1.0, 0.1, 0.14, {1: 2.0, 2: 9.0})
    assert best_lookup(texts, dear, max_new_tokens=20)[0] == 1

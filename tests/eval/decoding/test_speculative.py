"""The speculative loop emits the target's own text, and its trace is the one the replay predicts."""

import pytest

from eval.decoding.sampling import Limits, Sampling, Speculation
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.replay import count_trace, replay_counts, replay_response, response_logits
from tests.eval.decoding.laws import law_greedy_text_is_the_targets
from tests.rejections import rejects

LENGTH = 24
NEVER = frozenset()


@pytest.fixture(scope="module")
def responses(target, prompts):
    """The target's own, to every prompt."""
    return [text.token_ids for text in plain_decode(target, prompts, limits=Limits(LENGTH))]


def trace_of(decoded):
    return [(one.start, one.accepted) for one in decoded.steps]


def speculate(target, draft, prompt, num_speculative_tokens, stop_ids=NEVER, max_new_tokens=LENGTH):
    [decoded] = speculate_all(target, draft, [prompt], num_speculative_tokens, stop_ids, max_new_tokens)
    return decoded


def speculate_all(target, draft, prompts, num_speculative_tokens, stop_ids=NEVER, max_new_tokens=LENGTH):
    return speculative_decode(
        target, draft, prompts, limits=Limits(max_new_tokens, stop_ids), speculation=Speculation(num_speculative_tokens)
    )


def plain(target, prompt, stop_ids=NEVER, max_new_tokens=LENGTH):
    [decoded] = plain_decode(target, [prompt], limits=Limits(max_new_tokens, stop_ids))
    return decoded.token_ids


def replayed_counts(target, draft, prompt, response, num_speculative_tokens):
    logits = [response_logits(model, prompt, response) for model in (target, draft)]
    replay = replay_response(*logits, response, sampling=Sampling(0))
    return replay_counts(replay.rules["exact_greedy_draft"].accept, num_speculative_tokens=num_speculative_tokens)


@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 8])
def test_text_is_the_targets_and_counts_are_the_replays(
    target, noisy_draft, prompts, responses, num_speculative_tokens
):
    accepted = rejected = 0
    batch = speculate_all(target, noisy_draft, prompts, num_speculative_tokens)
    for prompt, response, decoded in zip(prompts, responses, batch, strict=True):
        assert decoded.token_ids == response
        counts = count_trace(trace_of(decoded), num_tokens=LENGTH, num_speculative_tokens=num_speculative_tokens)
        assert counts == replayed_counts(target, noisy_draft, prompt, response, num_speculative_tokens)
        accepted += counts.accepted_tokens
        rejected += counts.reached[0] - counts.accepted[0]
    assert accepted > 40  # neither side of the test is empty
    assert rejected > 12


@pytest.mark.parametrize("position", range(6))
def test_a_stop_token_ends_the_text_wherever_it_falls_in_a_round(target, noisy_draft, prompts, responses, position):
    """Any token of the greedy text can be declared the stop token (the trick of transformers #47912)."""
    prompt, stop = prompts[2], responses[2][position]
    response = responses[2][: 1 + responses[2].index(stop)]
    assert plain(target, prompt, {stop, 263}) == response
    for draft, k in ((noisy_draft, 3), (target, 3), (target, 8)):
        decoded = speculate(target, draft, prompt, k, {stop, 263})
        assert decoded.token_ids == response
        counts = count_trace(trace_of(decoded), num_tokens=len(response), num_speculative_tokens=k)
        assert counts == replayed_counts(target, draft, prompt, response, k)
        assert counts.emitted_tokens == len(response)


@pytest.mark.parametrize("stop", [0, 2])
def test_token_id_zero_and_a_pad_token_that_is_a_stop_token_are_read_like_any_other(target, noisy_draft, stop):
    """On the left of a prompt next to longer ones, too, where rows are filled."""
    assert target.config.pad_token_id == target.config.eos_token_id == 2
    prompts = [[0, 0, 9], [9], [0, 5, 0, 0], [7] * 9, [2, 7, 2, 2, 9], [2]]
    law_greedy_text_is_the_targets(target, noisy_draft, prompts, Limits(LENGTH, frozenset({stop})))


def test_the_draft_reads_no_token_twice_one_a_step_and_two_after_a_full_round(target, noisy_draft, prompts):
    fed = []
    hook = noisy_draft.register_forward_pre_hook(
        lambda _module, _args, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    decoded = speculate(target, noisy_draft, prompts[4], 3)
    hook.remove()
    expected = [len(prompts[4]) - 1]
    for before, after in zip((None, *decoded.steps), decoded.steps, strict=False):
        full = before is not None and before.accepted == before.proposed
        expected += [1 + full, *[1] * (after.proposed - 1)] if after.proposed else []
    assert fed == expected
    assert 2 in expected[1:]


def test_steps_go_on_to_the_end_of_the_text_and_hold_their_times(target, noisy_draft, prompts):
    decoded = speculate(target, noisy_draft, prompts[1], 4)
    ends = [one.start + one.accepted + 1 for one in decoded.steps]
    assert [one.start for one in decoded.steps] == [0, *ends[:-1]]
    assert ends[-1] == len(decoded.token_ids) == LENGTH
    assert all(one.draft_s > 0 and one.verify_s > 0 for one in decoded.steps[:-1])
    spent_s = sum(one.draft_s + one.verify_s for one in decoded.steps)
    assert 0 < spent_s <= decoded.decode_s
    assert decoded.prefill_s > 0


def test_nonsense_is_refused(target):
    with rejects("num_speculative_tokens", error=ValueError):
        speculate(target, target, [5], 0)
    with rejects(0, error=ValueError):
        speculate(target, target, [], 2)
    with rejects("max_new_tokens=0", error=ValueError):
        plain(target, [5], max_new_tokens=0)

"""The speculative loop emits the target's own text, and its trace is the one the replay predicts."""

import pytest
import torch

from eval.decoding.sampling import Limits, Sampling, Speculation
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.models import load_model
from eval.replay import count_trace, replay_counts, replay_response, response_logits, tau
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


def generated(target, prompt, **options):
    """What transformers' own generate writes."""
    ids = torch.tensor([prompt])
    output = target.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LENGTH, pad_token_id=0, **options
    )
    return tuple(output[0, len(prompt) :].tolist())


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


def test_nothing_of_a_draft_that_is_always_wrong_counts_as_accepted(target_folder, target, prompts, responses):
    def shift(_module, _inputs, output):
        output.logits = output.logits.roll(1, dims=-1)
        return output

    shifted = load_model(target_folder, dtype="float32", device="cpu")
    shifted.register_forward_hook(shift)
    for response, decoded in zip(responses, speculate_all(target, shifted, prompts, 4), strict=True):
        assert decoded.token_ids == response
        assert tau(count_trace(trace_of(decoded), num_tokens=LENGTH, num_speculative_tokens=4)) == 1


@pytest.mark.parametrize("position", range(6))
def test_a_stop_token_ends_the_text_wherever_it_falls_in_a_round(target, noisy_draft, prompts, responses, position):
    """Any token of the greedy text can be declared the stop token (the trick of transformers #47912)."""
    prompt, stop = prompts[2], responses[2][position]
    response = responses[2][: 1 + responses[2].index(stop)]
    assert response == generated(target, prompt, eos_token_id=[stop, 263])
    for draft, k in ((noisy_draft, 3), (target, 3), (target, 8)):
        decoded = speculate(target, draft, prompt, k, {stop, 263})
        assert decoded.token_ids == response
        counts = count_trace(trace_of(decoded), num_tokens=len(response), num_speculative_tokens=k)
        assert counts == replayed_counts(target, draft, prompt, response, k)
        assert counts.emitted_tokens == len(response)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 6, 7, 11])
def test_the_length_limit_holds_in_the_middle_of_a_round(target, noisy_draft, prompts, responses, max_new_tokens):
    for draft in (noisy_draft, target):
        decoded = speculate(target, draft, prompts[3], 5, max_new_tokens=max_new_tokens)
        assert decoded.token_ids == responses[3][:max_new_tokens]
        assert decoded.steps[-1].start + decoded.steps[-1].accepted + 1 == max_new_tokens


def test_token_id_zero_is_a_token_like_any_other(target, noisy_draft):
    prompt = [0, 5, 0, 0]
    response = plain(target, prompt)
    assert response == generated(target, prompt, eos_token_id=-1)
    assert 0 in response
    decoded = speculate(target, noisy_draft, prompt, 4, {0})
    assert decoded.token_ids == response[: response.index(0) + 1]


def test_a_pad_token_equal_to_the_stop_token_may_stand_in_the_prompt(target, noisy_draft):
    assert target.config.pad_token_id == target.config.eos_token_id == 2
    for prompt in ([2, 7, 2, 2, 9], [2]):
        assert speculate(target, noisy_draft, prompt, 4, {2}).token_ids == generated(target, prompt)


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


def test_the_lookahead_is_really_passed_on(target, noisy_draft, prompts):
    for k in (1, 2, 6):
        decoded = speculate(target, noisy_draft, prompts[2], k, max_new_tokens=8)
        assert decoded.steps[0].proposed == k


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

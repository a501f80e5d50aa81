"""Replay against enumeration, against the exact law of speculative sampling, and against a live sampler."""

from itertools import product

import numpy as np
import pytest
import torch

from eval.acceptance import count_trace, pool
from eval.models import load_model
from eval.replay import answer_logits, replay_answer, replay_counts, rule_name


def rounds_of(accept_bits, lookahead):
    """Plain reference: walk through a text whose accept decisions are known."""
    start, rounds = 0, []
    while start < len(accept_bits):
        accepted, room = 0, min(lookahead, len(accept_bits) - start - 1)
        while accepted < room and accept_bits[start + accepted]:
            accepted += 1
        rounds.append((start, accepted))
        start += accepted + 1
    return rounds


def enumerated_counts(accept, lookahead):
    """Plain reference: every pattern of accepts, weighted by its chance."""
    weighted = []
    for bits in product((0, 1), repeat=len(accept)):
        chance = np.prod(np.where(bits, accept, 1 - np.array(accept)))
        counts = count_trace(rounds_of(bits, lookahead), num_tokens=len(accept), lookahead=lookahead)
        rows = (counts.possible, counts.reached, counts.accepted)
        weighted.append(chance * np.array([[counts.rounds] * lookahead, *rows]))
    return sum(weighted)


@pytest.mark.parametrize("lookahead", range(1, 9))
def test_expected_counts_equal_the_sum_over_all_accept_patterns(lookahead):
    accept = [0.9, 0.2, 1.0, 0.55, 0.0, 0.7, 0.35]
    counts = replay_counts(np.array(accept), lookahead=lookahead)
    expected = enumerated_counts(accept, lookahead)
    assert counts.rounds == pytest.approx(expected[0, 0], abs=1e-12)
    assert counts.possible == pytest.approx(expected[1], abs=1e-12)
    assert counts.reached == pytest.approx(expected[2], abs=1e-12)
    assert counts.accepted == pytest.approx(expected[3], abs=1e-12)


@pytest.mark.parametrize("lookahead", range(1, 9))
def test_at_temperature_zero_counts_are_those_of_the_one_possible_trace(lookahead):
    bits = np.random.default_rng(lookahead).random(57) < 0.6
    counts = replay_counts(bits.astype(float), lookahead=lookahead)
    assert counts == count_trace(rounds_of(bits, lookahead), num_tokens=57, lookahead=lookahead)


@pytest.mark.parametrize("lookahead", [1, 3, 8])
def test_every_token_is_emitted_once(lookahead):
    accept = np.random.default_rng(0).random(40)
    assert replay_counts(accept, lookahead=lookahead).emitted_tokens == pytest.approx(40)


def test_the_last_token_is_the_targets_own():
    assert replay_counts(np.array([1.0]), lookahead=3).accepted == (0, 0, 0)
    assert replay_counts(np.array([1.0, 1.0]), lookahead=3).accepted == (1, 0, 0)


def backward_rounds(accept, lookahead):
    """N(s) of reference/evaluation.md 1.5, with our cap at the end of the text."""
    num_tokens = len(accept)
    rounds = np.zeros(num_tokens + 1)
    for start in reversed(range(num_tokens)):
        room = min(lookahead, num_tokens - start - 1)
        reach, rounds[start] = 1.0, 1.0
        for k in range(room):
            rounds[start] += reach * (1 - accept[start + k]) * rounds[start + k + 1]
            reach *= accept[start + k]
        rounds[start] += reach * rounds[start + room + 1]
    return rounds[0]


def test_rounds_equal_the_backward_recursion():
    accept = np.random.default_rng(1).random(24)
    for lookahead in range(1, 9):
        counts = replay_counts(accept, lookahead=lookahead)
        assert counts.rounds == pytest.approx(backward_rounds(accept, lookahead), rel=1e-12)


def markov_pair(num_tokens, seed):
    rng = np.random.default_rng(seed)
    target, draft = (rng.dirichlet(np.full(num_tokens, 0.7), size=num_tokens) for _ in range(2))
    return target, 0.7 * target + 0.3 * draft


def exact_rounds(target, draft, length, lookahead):
    """Expected rounds by the law of the algorithm itself, over states (last token, tokens left)."""
    both, rest = np.minimum(target, draft), np.maximum(target - draft, 0)
    rounds = np.zeros((length + 1, len(target)))
    for left in range(1, length + 1):
        room = min(lookahead, left - 1)
        value = target @ rounds[left - room - 1]  # all proposals kept: one more token from the target
        for k in reversed(range(room)):
            value = both @ value + rest @ rounds[left - k - 1]
        rounds[left] = 1 + value
    return rounds[length][0]


def markov_accept(target, draft, text):
    """r_t along a text that follows token 0."""
    before, after = (0, *text[:-1]), text
    return np.minimum(1, draft[before, after] / target[before, after])


@pytest.mark.parametrize("lookahead", [1, 2, 3, 6])
def test_replay_averaged_over_all_texts_is_the_exact_law(lookahead):
    target, draft = markov_pair(3, seed=4)
    mean = 0.0
    for text in product(range(3), repeat=5):
        chance = np.prod(target[(0, *text[:-1]), text])
        mean += chance * replay_counts(markov_accept(target, draft, text), lookahead=lookahead).rounds
    assert mean == pytest.approx(exact_rounds(target, draft, 5, lookahead), abs=1e-12)


def sample_text(target, length, rng):
    """One text of the target alone."""
    text = [0]
    for _ in range(length):
        text.append(rng.choice(len(target), p=target[text[-1]]))
    return tuple(text[1:])


def sample_rounds(target, draft, length, lookahead, rng):
    """Plain speculative sampling (Leviathan et al. 2023, algorithm 1): start and accepted tokens of each round."""
    last, emitted, rounds = 0, 0, []
    while emitted < length:
        accepted, room = 0, min(lookahead, length - emitted - 1)
        while accepted < room:
            token = rng.choice(len(draft), p=draft[last])
            if rng.random() > target[last, token] / draft[last, token]:
                residual = np.maximum(target[last] - draft[last], 0)
                last = rng.choice(len(target), p=residual / residual.sum())
                break
            last, accepted = token, accepted + 1
        else:
            last = rng.choice(len(target), p=target[last])
        rounds.append((emitted, accepted))
        emitted += accepted + 1
    return rounds


def test_six_token_markov_model_live_replay_and_exact_law_agree():
    """The check of reference/evaluation.md 1.5: lookahead 3, texts of 24 tokens. Bounds are 4 standard errors."""
    target, draft = markov_pair(6, seed=0)
    rng = np.random.default_rng(17)
    exact = exact_rounds(target, draft, 24, 3)
    live = [count_trace(sample_rounds(target, draft, 24, 3, rng), num_tokens=24, lookahead=3) for _ in range(2000)]
    texts = [sample_text(target, 24, rng) for _ in range(2000)]
    replayed = [replay_counts(markov_accept(target, draft, text), lookahead=3) for text in texts]
    live_rounds, replayed_rounds = (np.array([one.rounds for one in counts]) for counts in (live, replayed))
    for rounds in (live_rounds, replayed_rounds):
        assert abs(rounds.mean() - exact) < 4 * rounds.std() / np.sqrt(len(rounds))
    assert replayed_rounds.std() < live_rounds.std() / 2
    for name in ("possible", "reached", "accepted"):
        # sd of one text's count is below 2.5
        assert getattr(pool(replayed), name) == pytest.approx(getattr(pool(live), name), abs=4 * 2.5 * 2000**0.5)


def greedy_answer(model, prompt, num_tokens):
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(num_tokens):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(prompt) :].tolist()


def test_row_t_of_the_logits_is_what_the_model_expects_at_answer_token_t(target, prompts):
    for prompt in prompts:
        answer = greedy_answer(target, prompt, 12)
        assert answer_logits(target, prompt, answer).argmax(-1).tolist() == answer


def test_an_answer_of_one_token_after_a_prompt_of_one_token(target):
    logits = answer_logits(target, [5], [9])
    assert torch.equal(logits, target(torch.tensor([[5]])).logits[0])


def test_logits_are_float32_also_of_a_half_precision_model(tiny_target):
    assert answer_logits(load_model(tiny_target, dtype="bfloat16"), [5, 6], [7, 8]).dtype is torch.float32


@pytest.fixture
def pair_logits():
    generator = torch.Generator().manual_seed(2)
    target = 3 * torch.randn(30, 50, generator=generator)
    return target, target + torch.randn(30, 50, generator=generator)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_accept_and_alpha_equal_a_plain_float64_reference(pair_logits, temperature):
    target, draft = (logits.double().numpy() for logits in pair_logits)
    answer = np.random.default_rng(0).integers(0, 50, 30)
    p, q = (np.exp(x / temperature) / np.exp(x / temperature).sum(1, keepdims=True) for x in (target, draft))
    replay = replay_answer(*pair_logits, answer.tolist(), temperature=temperature)
    rows = np.arange(30)
    assert replay.accept == pytest.approx(np.minimum(1, q[rows, answer] / p[rows, answer]), rel=1e-4)
    assert replay.alpha == pytest.approx(np.minimum(p, q).sum(1), rel=1e-5)
    assert replay.target_logp == pytest.approx(np.log(p[rows, answer]), rel=1e-4)
    assert replay.draft_logp == pytest.approx(np.log(q[rows, answer]), rel=1e-4)
    assert replay.match.tolist() == (target.argmax(1) == draft.argmax(1)).tolist()


def test_the_mean_accept_chance_of_the_targets_own_tokens_is_alpha(pair_logits):
    target, draft = (logits.softmax(-1).double() for logits in pair_logits)
    expected = (target * (draft / target).clamp(max=1)).sum(-1)
    assert replay_answer(*pair_logits, [0] * 30, temperature=1).alpha == pytest.approx(expected.numpy(), rel=1e-5)


def test_at_temperature_zero_a_token_is_accepted_iff_it_is_the_drafts_argmax(pair_logits):
    target, draft = pair_logits
    answer = target.argmax(-1)
    replay = replay_answer(target, draft, answer.tolist(), temperature=0)
    matches = (draft.argmax(-1) == answer).double().numpy()
    assert 0 < matches.mean() < 1
    for name in ("accept", "alpha", "match"):
        assert getattr(replay, name).tolist() == matches.tolist()


def test_at_temperature_zero_the_text_rules_where_the_targets_argmax_disagrees_with_it(pair_logits):
    target, draft = pair_logits
    answer = draft.argmax(-1).tolist()
    replay = replay_answer(target, draft, answer, temperature=0)
    assert replay.accept.tolist() == [1.0] * 30
    assert replay.alpha.mean() < 1
    assert np.isneginf(replay.target_logp).sum() == (target.argmax(-1) != draft.argmax(-1)).sum()


def test_at_temperature_zero_a_token_that_is_neither_argmax_is_not_accepted(pair_logits):
    target, draft = pair_logits
    answer = (target + draft).argmin(-1).tolist()
    assert replay_answer(target, draft, answer, temperature=0).accept.tolist() == [0.0] * 30


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sums_over_an_answer_are_made_in_float64(pair_logits, temperature):
    replay = replay_answer(*pair_logits, [0] * 30, temperature=temperature)
    assert {values.dtype for values in vars(replay).values()} == {np.dtype(np.float64)}


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draft_equal_to_the_target_is_always_accepted(pair_logits, temperature):
    target, _ = pair_logits
    replay = replay_answer(target, target, target.argmax(-1).tolist(), temperature=temperature)
    assert replay.accept.tolist() == [1.0] * 30
    assert replay.alpha == pytest.approx(1.0, abs=1e-6)
    assert replay.num_tokens == 30


def test_alpha_of_a_uniform_draft(pair_logits):
    target, _ = pair_logits
    replay = replay_answer(target, torch.zeros_like(target), [0] * 30, temperature=1)
    assert replay.alpha == pytest.approx(target.softmax(-1).clamp(max=1 / 50).sum(-1).numpy(), rel=1e-5)


def test_alpha_of_a_draft_that_mixes_in_another_distribution(pair_logits):
    target, other = (logits.softmax(-1) for logits in pair_logits)
    mixed = (0.8 * target + 0.2 * other).log()
    distance = 0.5 * (target - other).abs().sum(-1)
    replay = replay_answer(target.log(), mixed, [0] * 30, temperature=1)
    assert replay.alpha == pytest.approx((1 - 0.2 * distance).numpy(), rel=1e-5)


def test_logits_of_two_vocabularies_are_refused():
    with pytest.raises(ValueError, match=r"one shape .* got \(2, 5\) and \(2, 6\)"):
        replay_answer(torch.zeros(2, 5), torch.zeros(2, 6), [0, 1], temperature=1)


def test_every_rate_has_a_rule():
    assert rule_name(0.0) == "exact_greedy_draft"
    assert rule_name(0.7) == rule_name(1.0) == "rejection"

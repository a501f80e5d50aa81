"""What each acceptance rule makes of two models' logits, against float64; and the bins that hold every token once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eval.decoding.sampling import Sampling
from eval.replay import (
    EXACT_GREEDY_DRAFT,
    EXACT_SAMPLED_DRAFT,
    NO_CATEGORY,
    NO_TASK,
    POSITION_EDGES,
    REJECTION,
    Replay,
    ReplayedResponse,
    part_tokens,
    position_bins,
    replay_response,
    response_logits,
    rule_name,
    rule_names,
    token_labels,
)


def greedy_response(model, prompt, num_tokens):
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(num_tokens):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(prompt) :].tolist()


def test_row_t_of_the_logits_is_what_the_model_expects_at_response_token_t(target, prompts):
    for prompt in prompts:
        response = greedy_response(target, prompt, 12)
        assert response_logits(target, prompt, response).argmax(-1).tolist() == response


@pytest.fixture
def pair_logits():
    generator = torch.Generator().manual_seed(2)
    target = 3 * torch.randn(30, 50, generator=generator)
    return target, target + torch.randn(30, 50, generator=generator)


def plain_distributions(pair_logits, temperature):
    """p and q in float64."""
    scaled = [np.exp(logits.double().numpy() / temperature) for logits in pair_logits]
    return [weights / weights.sum(1, keepdims=True) for weights in scaled]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_accept_and_alpha_equal_a_plain_float64_reference(pair_logits, temperature):
    rows, response = np.arange(30), np.random.default_rng(0).integers(0, 50, 30)
    p, q = plain_distributions(pair_logits, temperature)
    response[::3] = q.argmax(1)[::3]
    replay = replay_response(*pair_logits, response.tolist(), sampling=Sampling(temperature))
    expected = {
        REJECTION: (np.minimum(1, q[rows, response] / p[rows, response]), np.minimum(p, q).sum(1)),
        EXACT_GREEDY_DRAFT: (q.argmax(1) == response, p[rows, q.argmax(1)]),
        EXACT_SAMPLED_DRAFT: (q[rows, response], (p * q).sum(1)),
    }
    assert replay.rules.keys() == expected.keys()
    for rule, (accept, alpha) in expected.items():
        assert replay.rules[rule].accept == pytest.approx(accept.astype(float), rel=1e-4)
        assert replay.rules[rule].alpha == pytest.approx(alpha, rel=1e-4)
    assert replay.target_logp == pytest.approx(np.log(p[rows, response]), rel=1e-4, abs=1e-6)
    assert replay.draft_logp == pytest.approx(np.log(q[rows, response]), rel=1e-4, abs=1e-6)
    assert replay.match.tolist() == (p.argmax(1) == q.argmax(1)).tolist()


@pytest.mark.parametrize("rule", rule_names(1.0))
def test_the_mean_accept_chance_of_the_targets_own_tokens_is_alpha(pair_logits, rule):
    p, _ = plain_distributions(pair_logits, 1.0)
    along_y = [replay_response(*pair_logits, [y] * 30, sampling=Sampling(1.0)).rules[rule] for y in range(50)]
    mean = sum(p[:, y] * accepts.accept for y, accepts in enumerate(along_y))
    assert along_y[0].alpha == pytest.approx(mean, rel=1e-4)


def test_golden_alphas_of_the_three_rules():
    """reference/evaluation.md 1.2: one draft, three scores, and all of them right."""
    target, draft = (torch.tensor([row]).log() for row in ((0.6, 0.2, 0.1, 0.1), (0.7, 0.2, 0.05, 0.05)))
    rules = replay_response(target, draft, [0], sampling=Sampling(1.0)).rules
    assert {rule: accepts.alpha.item() for rule, accepts in rules.items()} == pytest.approx(
        {"rejection": 0.90, "exact_greedy_draft": 0.60, "exact_sampled_draft": 0.47}
    )


def test_alpha_is_not_min_p_q_at_the_drafted_token():
    """The mean of min(p, q)(x) over drafted x is .465 where the draft is right with chance .90."""
    target, draft = (torch.tensor([row]).log() for row in ((0.6, 0.2, 0.1, 0.1), (0.7, 0.2, 0.05, 0.05)))
    alpha = replay_response(target, draft, [0], sampling=Sampling(1.0)).rules[REJECTION].alpha.item()
    p, q = target.exp(), draft.exp()
    assert (q * torch.minimum(p, q)).sum().item() == pytest.approx(0.465)
    assert alpha == pytest.approx((q * (p / q).clamp(max=1)).sum().item()) == pytest.approx(0.90)


def test_the_targets_entropy_is_that_of_its_own_distribution_at_any_temperature(pair_logits):
    p, _ = plain_distributions(pair_logits, 1.0)
    for temperature in (0.0, 0.3, 1.0):
        replay = replay_response(*pair_logits, [0] * 30, sampling=Sampling(temperature))
        assert replay.target_entropy == pytest.approx(-(p * np.log(p)).sum(1), rel=1e-4)
    certain = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert replay_response(certain, certain, [0], sampling=Sampling(1.0)).target_entropy.tolist() == [0.0]


def test_at_temperature_zero_a_token_is_accepted_iff_it_is_the_drafts_argmax(pair_logits):
    target, draft = pair_logits
    response = target.argmax(-1)
    replay = replay_response(target, draft, response.tolist(), sampling=Sampling(0))
    matches = (draft.argmax(-1) == response).double().numpy()
    assert 0 < matches.mean() < 1
    assert list(replay.rules) == [EXACT_GREEDY_DRAFT]
    for values in (*vars(replay.rules[EXACT_GREEDY_DRAFT]).values(), replay.match):
        assert values.tolist() == matches.tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draft_equal_to_the_target_is_always_accepted(pair_logits, temperature):
    target, _ = pair_logits
    replay = replay_response(target, target, target.argmax(-1).tolist(), sampling=Sampling(temperature))
    accepts = replay.rules[rule_name(temperature)]
    assert accepts.accept.tolist() == [1.0] * 30
    assert accepts.alpha == pytest.approx(1.0, abs=1e-6)
    assert replay.num_tokens == 30


def replayed(num_tokens, *, entropy=0.0, category=None):
    ones = np.ones(num_tokens)
    return ReplayedResponse(0, category, Replay({}, ones, ones, ones, np.full(num_tokens, entropy), ones))


def bin_labels(responses, by):
    """Of each response the label of every token."""
    labels, bins = part_tokens(responses)[by]
    return [[labels[number] for number in bin_T] for bin_T in bins]


@pytest.mark.parametrize(
    ("position", "label"),
    [(0, "0-15"), (15, "0-15"), (16, "16-31"), (4095, "2048-4095"), (4096, "4096 and more"), (4999, "4096 and more")],
)
def test_positions_and_their_labels(position, label):
    assert token_labels(POSITION_EDGES)[position_bins(5000)[position]] == label
    assert bin_labels([replayed(5000)], "output_position")[0][position] == label


def test_the_context_length_counts_prompt_and_response():
    [labels] = bin_labels([replace(replayed(600), prompt_len=500)], "context_length")
    assert labels == ["0-511"] * 12 + ["512-1023"] * 512 + ["1024-2047"] * 76
    [labels] = bin_labels([replace(replayed(1), prompt_len=131_071)], "context_length")
    assert labels == ["65536-131071"]


def test_no_category_overwrites_the_one_before():
    """Of languages that take turns every response stays with its own."""
    languages = ("fr", "de", "fr", "en", "de", "fr")
    responses = [replayed(1, category=language) for language in languages]
    assert bin_labels(responses, "category") == [[language] for language in languages]


def test_categories_stand_in_their_order_and_the_rest_last():
    responses = [replayed(2), replayed(3, category="talk"), replayed(1, category="code")]
    assert part_tokens(responses)["category"][0] == ["code", "talk", NO_CATEGORY]
    assert bin_labels(responses, "category") == [[NO_CATEGORY] * 2, ["talk"] * 3, ["code"]]


def test_tasks_part_responses_as_categories_do():
    responses = [replace(replayed(2, category="math"), task=task) for task in ("mt_bench/1", None, "gsm8k/1")]
    assert part_tokens(responses)["task"][0] == ["gsm8k/1", "mt_bench/1", NO_TASK]
    assert [first for first, _ in bin_labels(responses, "task")] == ["mt_bench/1", NO_TASK, "gsm8k/1"]
    assert bin_labels(responses, "category")[0] == ["math"] * 2

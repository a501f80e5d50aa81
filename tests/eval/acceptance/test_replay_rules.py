"""What each acceptance rule makes of two models' logits, against plain references in float64."""

import numpy as np
import pytest
import torch

from eval.acceptance.replay import (
    EXACT_GREEDY_DRAFT,
    EXACT_SAMPLED_DRAFT,
    REJECTION,
    answer_logits,
    replay_answer,
    rule_name,
    rule_names,
)
from eval.decoding.sampling import Sampling
from eval.models.loading import load_model


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
    with torch.inference_mode():  # in which products are rounded as in replay
        assert torch.equal(logits, target(torch.tensor([[5]])).logits[0])


def test_logits_are_float32_also_of_a_half_precision_model(tiny_target):
    assert answer_logits(load_model(tiny_target, dtype="bfloat16"), [5, 6], [7, 8]).dtype is torch.float32


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
    rows, answer = np.arange(30), np.random.default_rng(0).integers(0, 50, 30)
    p, q = plain_distributions(pair_logits, temperature)
    answer[::3] = q.argmax(1)[::3]
    replay = replay_answer(*pair_logits, answer.tolist(), sampling=Sampling(temperature))
    expected = {
        REJECTION: (np.minimum(1, q[rows, answer] / p[rows, answer]), np.minimum(p, q).sum(1)),
        EXACT_GREEDY_DRAFT: (q.argmax(1) == answer, p[rows, q.argmax(1)]),
        EXACT_SAMPLED_DRAFT: (q[rows, answer], (p * q).sum(1)),
    }
    assert replay.rules.keys() == expected.keys()
    for rule, (accept, alpha) in expected.items():
        assert replay.rules[rule].accept == pytest.approx(accept.astype(float), rel=1e-4)
        assert replay.rules[rule].alpha == pytest.approx(alpha, rel=1e-4)
    assert replay.target_logp == pytest.approx(np.log(p[rows, answer]), rel=1e-4, abs=1e-6)
    assert replay.draft_logp == pytest.approx(np.log(q[rows, answer]), rel=1e-4, abs=1e-6)
    assert replay.match.tolist() == (p.argmax(1) == q.argmax(1)).tolist()


@pytest.mark.parametrize("rule", rule_names(1.0))
def test_the_mean_accept_chance_of_the_targets_own_tokens_is_alpha(pair_logits, rule):
    p, _ = plain_distributions(pair_logits, 1.0)
    along_y = [replay_answer(*pair_logits, [y] * 30, sampling=Sampling(1.0)).rules[rule] for y in range(50)]
    mean = sum(p[:, y] * accepts.accept for y, accepts in enumerate(along_y))
    assert along_y[0].alpha == pytest.approx(mean, rel=1e-4)


def test_golden_alphas_of_the_three_rules():
    """reference/evaluation.md 1.2: one draft, three scores, and all of them right."""
    target, draft = (torch.tensor([row]).log() for row in ((0.6, 0.2, 0.1, 0.1), (0.7, 0.2, 0.05, 0.05)))
    rules = replay_answer(target, draft, [0], sampling=Sampling(1.0)).rules
    assert {rule: accepts.alpha.item() for rule, accepts in rules.items()} == pytest.approx(
        {"rejection": 0.90, "exact_greedy_draft": 0.60, "exact_sampled_draft": 0.47}
    )


def test_alpha_is_not_min_p_q_at_the_drafted_token():
    """The mean of min(p, q)(x) over drafted x is .465 where the draft is right with chance .90."""
    target, draft = (torch.tensor([row]).log() for row in ((0.6, 0.2, 0.1, 0.1), (0.7, 0.2, 0.05, 0.05)))
    alpha = replay_answer(target, draft, [0], sampling=Sampling(1.0)).rules[REJECTION].alpha.item()
    p, q = target.exp(), draft.exp()
    assert (q * torch.minimum(p, q)).sum().item() == pytest.approx(0.465)
    assert alpha == pytest.approx((q * (p / q).clamp(max=1)).sum().item()) == pytest.approx(0.90)


def test_the_targets_entropy_is_that_of_its_own_distribution_at_any_temperature(pair_logits):
    p, _ = plain_distributions(pair_logits, 1.0)
    for temperature in (0.0, 0.3, 1.0):
        replay = replay_answer(*pair_logits, [0] * 30, sampling=Sampling(temperature))
        assert replay.target_entropy == pytest.approx(-(p * np.log(p)).sum(1), rel=1e-4)
    certain = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert replay_answer(certain, certain, [0], sampling=Sampling(1.0)).target_entropy.tolist() == [0.0]


def test_at_temperature_zero_a_token_is_accepted_iff_it_is_the_drafts_argmax(pair_logits):
    target, draft = pair_logits
    answer = target.argmax(-1)
    replay = replay_answer(target, draft, answer.tolist(), sampling=Sampling(0))
    matches = (draft.argmax(-1) == answer).double().numpy()
    assert 0 < matches.mean() < 1
    assert list(replay.rules) == [EXACT_GREEDY_DRAFT]
    for values in (*vars(replay.rules[EXACT_GREEDY_DRAFT]).values(), replay.match):
        assert values.tolist() == matches.tolist()


def test_at_temperature_zero_the_text_rules_where_the_targets_argmax_disagrees_with_it(pair_logits):
    target, draft = pair_logits
    answer = draft.argmax(-1).tolist()
    replay = replay_answer(target, draft, answer, sampling=Sampling(0))
    assert replay.rules[EXACT_GREEDY_DRAFT].accept.tolist() == [1.0] * 30
    assert replay.rules[EXACT_GREEDY_DRAFT].alpha.mean() < 1
    assert np.isneginf(replay.target_logp).sum() == (target.argmax(-1) != draft.argmax(-1)).sum()


def test_at_temperature_zero_a_token_that_is_neither_argmax_is_not_accepted(pair_logits):
    target, draft = pair_logits
    answer = (target + draft).argmin(-1).tolist()
    assert (
        replay_answer(target, draft, answer, sampling=Sampling(0)).rules[EXACT_GREEDY_DRAFT].accept.tolist()
        == [0.0] * 30
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sums_over_an_answer_are_made_in_float64(pair_logits, temperature):
    replay = replay_answer(*pair_logits, [0] * 30, sampling=Sampling(temperature))
    arrays = [values for name, values in vars(replay).items() if name != "rules"]
    arrays += [values for accepts in replay.rules.values() for values in vars(accepts).values()]
    assert {values.dtype for values in arrays} == {np.dtype(np.float64)}


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draft_equal_to_the_target_is_always_accepted(pair_logits, temperature):
    target, _ = pair_logits
    replay = replay_answer(target, target, target.argmax(-1).tolist(), sampling=Sampling(temperature))
    accepts = replay.rules[rule_name(temperature)]
    assert accepts.accept.tolist() == [1.0] * 30
    assert accepts.alpha == pytest.approx(1.0, abs=1e-6)
    assert replay.num_tokens == 30


def test_alpha_of_a_uniform_draft(pair_logits):
    target, _ = pair_logits
    replay = replay_answer(target, torch.zeros_like(target), [0] * 30, sampling=Sampling(1))
    assert replay.rules[REJECTION].alpha == pytest.approx(
        target.softmax(-1).clamp(max=1 / 50).sum(-1).numpy(), rel=1e-5
    )


def test_alpha_of_a_draft_that_mixes_in_another_distribution(pair_logits):
    target, other = (logits.softmax(-1) for logits in pair_logits)
    mixed = (0.8 * target + 0.2 * other).log()
    distance = 0.5 * (target - other).abs().sum(-1)
    replay = replay_answer(target.log(), mixed, [0] * 30, sampling=Sampling(1))
    assert replay.rules[REJECTION].alpha == pytest.approx((1 - 0.2 * distance).numpy(), rel=1e-5)


def test_logits_of_two_vocabularies_are_refused():
    with pytest.raises(ValueError, match=r"one shape .* got \(2, 5\) and \(2, 6\)"):
        replay_answer(torch.zeros(2, 5), torch.zeros(2, 6), [0, 1], sampling=Sampling(1))


def test_every_rate_has_a_rule():
    assert rule_name(0.0) == "exact_greedy_draft"
    assert rule_name(0.7) == rule_name(1.0) == "rejection"
    assert rule_names(0.0) == ("exact_greedy_draft",)
    assert rule_names(0.7) == ("rejection", "exact_greedy_draft", "exact_sampled_draft")

"""Acceptance per token, and its mean over batches.

Shape suffixes: A = response tokens, V = vocabulary entries.
"""

from dataclasses import astuple

import numpy as np
import pytest
import torch

from distill.metrics import (
    KS,
    PooledOverResponses,
    Response,
    acceptance_prob,
    eval_metrics,
    expected_acceptance,
    greedy_match,
    mean_terms,
    quantities_of_rows,
    responses_of,
)
from eval.decoding.sampling import Sampling
from eval.replay import replay_counts, replay_response, rule_name


def logits(seed: int, num_tokens: int = 5) -> torch.Tensor:
    return torch.randn(num_tokens, 9, generator=torch.Generator().manual_seed(seed)) * 2


def test_a_student_equal_to_its_teacher_is_always_accepted():
    torch.testing.assert_close(expected_acceptance(logits(0), logits(0)), torch.ones(5))
    torch.testing.assert_close(greedy_match(logits(0), logits(0)), torch.ones(5))


def test_disjoint_distributions_are_never_accepted():
    one, other = torch.full((1, 4), -1e4), torch.full((1, 4), -1e4)
    one[0, 0] = other[0, 1] = 1e4
    assert expected_acceptance(one, other).item() == 0.0
    assert greedy_match(one, other).item() == 0.0


def test_alpha_is_one_minus_the_total_variation_distance():
    p, q = logits(1).double().softmax(-1), logits(2).double().softmax(-1)
    alpha = expected_acceptance(logits(1), logits(2))
    torch.testing.assert_close(alpha, (1 - (p - q).abs().sum(-1) / 2).float())
    assert alpha.shape == (5,)


def test_half_precision_logits_are_compared_in_float32():
    alpha = expected_acceptance(logits(1).bfloat16(), logits(2).bfloat16())
    exact = expected_acceptance(logits(1).bfloat16().double(), logits(2).bfloat16().double())
    assert alpha.dtype == torch.float32
    torch.testing.assert_close(alpha, exact)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_chance_of_acceptance_is_that_of_the_replay(temperature):
    student, teacher, ids = logits(1), logits(2), [3, 0, 8, 1, 2]
    accept = acceptance_prob(student, teacher, torch.tensor(ids), temperature=temperature)
    replay = replay_response(teacher, student, ids, sampling=Sampling(temperature))
    assert accept.tolist() == pytest.approx(replay.rules[rule_name(temperature)].accept.tolist(), rel=1e-5)


def test_a_nucleus_binds_both_models():
    teacher = torch.tensor([[0.6, 0.3, 0.1]]).log()
    student = torch.tensor([[0.2, 0.2, 0.6]]).log()
    accept = acceptance_prob(student, teacher, torch.tensor([0]), temperature=1.0, top_p=0.9)
    assert accept.item() == pytest.approx(
        0.2 / (2 / 3)
    )  # the student's nucleus is everything, the teacher's two tokens
    assert acceptance_prob(teacher, student, torch.tensor([2]), temperature=1.0, top_p=0.9).item() == 0
    assert acceptance_prob(teacher, teacher, torch.tensor([2]), temperature=1.0, top_p=0.9).item() == 0


def response(*accept: float) -> Response:
    accepts = np.array(accept)
    return Response(alpha=accepts / 2, match=1 - accepts, accept=accepts)


def pooled(name: str, *batches: list[Response]) -> PooledOverResponses:
    metric = eval_metrics()[name]
    for responses in batches:
        metric.update(responses, [0] * len(responses))
    return metric


def test_means_count_tokens_not_batches_or_responses():
    assert pooled("alpha", [response(1, 1, 1), response(0)]).compute().item() == pytest.approx(3 / 8)
    assert pooled("greedy_match", [response(1, 1, 1)], [response(0)]).compute().item() == pytest.approx(1 / 4)


@pytest.mark.parametrize("num_speculative_tokens", KS)
def test_tau_is_that_of_the_replay_of_all_responses(num_speculative_tokens):
    responses = [response(1, 1, 0, 1, 1, 1, 1, 1, 1, 0), response(0, 1, 1), response(1)]
    counts = [replay_counts(one.accept, num_speculative_tokens=num_speculative_tokens) for one in responses]
    expected = sum(one.emitted_tokens for one in counts) / sum(one.steps for one in counts)
    assert pooled(f"tau_{num_speculative_tokens}", responses[:1], responses[1:]).compute().item() == pytest.approx(
        expected
    )


def test_the_interval_surrounds_the_value_and_needs_six_responses():
    responses = [response(1, 1, 0, 1), response(0, 0, 0), response(1, 1, 1, 1, 1)] * 2
    metric = pooled("tau_3", responses)
    value = metric.compute().item()
    assert metric.estimate is not None
    low, high = metric.estimate.interval
    assert low < value < high
    few = pooled("tau_3", responses[:5])
    few.compute()
    assert few.estimate is not None
    assert few.estimate.interval is None


def test_a_batch_is_split_into_its_responses():
    ids = torch.tensor([3, 0, 8, 1, 2])
    values = quantities_of_rows(logits(1), logits(2), ids, temperature=1.0)
    first, second = responses_of(values, [2, 3])
    whole = Response(*(np.concatenate(parts) for parts in zip(*map(astuple, (first, second)), strict=True)))
    assert len(second.alpha) == 3
    assert whole.alpha == pytest.approx(expected_acceptance(logits(1), logits(2)).numpy())
    assert whole.match == pytest.approx(greedy_match(logits(1), logits(2)).numpy())
    assert whole.accept == pytest.approx(acceptance_prob(logits(1), logits(2), ids, temperature=1.0).numpy())
    assert mean_terms(whole, name="alpha")[1] == 5

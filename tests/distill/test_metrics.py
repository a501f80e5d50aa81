"""Acceptance per token, and its mean over batches.

Shape suffixes: A = answer tokens, V = vocabulary entries.
"""

import pytest
import torch

from distill.metrics import AnswerTokenMean, eval_metrics, expected_acceptance, greedy_match, metrics_of_rows


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


def test_alpha_is_the_acceptance_rate_of_rejection_sampling():
    p, q = logits(1)[0].softmax(-1), logits(2)[0].softmax(-1)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(q, 200_000, replacement=True, generator=generator)
    accepted = torch.rand(len(drawn), generator=generator) < (p[drawn] / q[drawn])
    alpha = expected_acceptance(logits(2)[:1], logits(1)[:1]).item()
    assert accepted.float().mean().item() == pytest.approx(alpha, abs=4 * 0.5 / 200_000**0.5)  # four standard errors


def test_half_precision_logits_are_compared_in_float32():
    alpha = expected_acceptance(logits(1).bfloat16(), logits(2).bfloat16())
    exact = expected_acceptance(logits(1).bfloat16().double(), logits(2).bfloat16().double())
    assert alpha.dtype == torch.float32
    torch.testing.assert_close(alpha, exact)


def counted(*batches):
    metric = AnswerTokenMean("match")
    for values in batches:
        metric.update({"match": torch.tensor(values), "other": torch.zeros(9)})
    return metric


def test_mean_counts_tokens_not_batches():
    assert counted([1.0, 1.0, 1.0], [0.0]).compute().item() == pytest.approx(3 / 4)


def test_one_token_after_many_still_counts():
    assert counted([2.0**24], [1.0]).compute().item() == (2**24 + 1) / 2  # their sum is not a float32


def test_reset_forgets():
    metric = counted([0.0])
    metric.reset()
    metric.update({"match": torch.ones(2)})
    assert metric.compute().item() == 1.0


def test_columns_are_those_of_the_names_that_users_see():
    values = metrics_of_rows(logits(1), logits(2))
    metrics = eval_metrics()
    assert list(metrics) == ["alpha", "greedy_match"]
    for metric in metrics.values():
        metric.update(dict(zip(metrics, values.unbind(dim=1), strict=True)))
    alpha, match = (metrics[name].compute().item() for name in ("alpha", "greedy_match"))
    assert alpha == pytest.approx(expected_acceptance(logits(1), logits(2)).mean().item())
    assert match == pytest.approx(greedy_match(logits(1), logits(2)).mean().item())
    assert alpha != match

"""Losses from a few entries of the teacher: against their definition in float64, their limits and their gradients.

Shape suffixes: A = response tokens, V = vocabulary entries, K = entries kept, S = tokens drawn.
"""

import itertools

import pytest
import torch

from distill.losses import kept_forward_kl, sampled_cross_entropy, top_k_kl
from tests.rejections import rejects

NUM_TOKENS, VOCAB = 7, 11
KEPT = [1, 3, 10, VOCAB]


def keep(teacher_AV, k):
    """The K most likely tokens of each row: ids, log-probabilities, log of the tail."""
    p_AV = teacher_AV.double().softmax(-1)
    p_AK, ids_AK = p_AV.topk(k)
    rest_A = p_AV.scatter(-1, ids_AK, 0.0).sum(-1)
    return ids_AK, p_AK.log().float(), rest_A.log().float()


def reference_kl(student_AV, teacher_AV, k):
    """Token by token in float64: sum_K p (log p - log q) + (1 - P) log((1 - P) / (1 - Q))."""
    losses = []
    for student_V, teacher_V in zip(student_AV.double(), teacher_AV.double(), strict=True):
        q_V, p_V = student_V.softmax(-1).tolist(), teacher_V.softmax(-1)
        ids = p_V.topk(k).indices.tolist()
        pairs = [(float(p_V[i]), q_V[i]) for i in ids]
        pairs.append((1 - sum(p for p, _ in pairs), 1 - sum(q for _, q in pairs)))
        log = torch.log
        losses.append(sum(p * float(log(torch.tensor(p)) - log(torch.tensor(q))) for p, q in pairs if p > 1e-12))
    return torch.tensor(losses)


def full_kl(student_AV, teacher_AV):
    p_AV = teacher_AV.double().softmax(-1)
    return (p_AV * (teacher_AV.double().log_softmax(-1) - student_AV.double().log_softmax(-1))).sum(-1).float()


@pytest.mark.parametrize("k", KEPT)
def test_top_k_equals_the_definition(logits, k):
    student_AV, teacher_AV = logits
    torch.testing.assert_close(
        top_k_kl(student_AV, *keep(teacher_AV, k)), reference_kl(*logits, k), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("k", KEPT)
def test_between_zero_and_the_full_kl_and_growing_with_k(k):
    generator = torch.Generator().manual_seed(k)
    student_AV, teacher_AV = torch.randn(2, 500, VOCAB, generator=generator) * 4
    loss_A = top_k_kl(student_AV, *keep(teacher_AV, k))
    assert (loss_A > -1e-6).all()
    assert (loss_A <= full_kl(student_AV, teacher_AV) * (1 + 1e-5) + 1e-6).all()
    fewer_A = top_k_kl(student_AV, *keep(teacher_AV, max(1, k - 1)))
    assert (fewer_A <= loss_A * (1 + 1e-5) + 1e-6).all()


@pytest.mark.parametrize("k", KEPT)
def test_zero_when_student_equals_teacher(logits, k):
    student_AV, _ = logits
    torch.testing.assert_close(top_k_kl(student_AV, *keep(student_AV, k)), torch.zeros(NUM_TOKENS), rtol=0, atol=1e-6)


def test_rounded_log_probabilities_never_make_it_negative(logits):
    """float16 moves the sum of the K + 1 outcomes away from 1; the divergence stays one."""
    student_AV, _ = logits
    ids_AK, log_probs_AK, log_tail_A = keep(student_AV, 5)
    loss_A = top_k_kl(student_AV, ids_AK, log_probs_AK.half() - 0.01, log_tail_A)
    assert (loss_A > -1e-6).all()


def test_a_student_surer_than_float32_still_pays_for_the_tail(logits):
    """1 - Q is 0 in float32 here, and 40 nats below 1 in truth."""
    student_AV = torch.tensor([[40.0, 0.0, 0.0]])
    ids_AK, log_probs_AK = torch.tensor([[0]]), torch.tensor([[0.5]]).log()
    loss_A = top_k_kl(student_AV, ids_AK, log_probs_AK, log_probs_AK[:, 0])
    expected = 0.5 * (torch.tensor(0.5).log() - 0.0) + 0.5 * (torch.tensor(0.5).log() + 40 - torch.tensor(2.0).log())
    torch.testing.assert_close(loss_A, expected[None])


@pytest.mark.parametrize("k", KEPT)
def test_gradient_is_the_closed_form(logits, k):
    student_AV, teacher_AV = logits
    student_AV = student_AV.clone().requires_grad_()
    ids_AK, log_probs_AK, log_tail_A = keep(teacher_AV, k)
    top_k_kl(student_AV, ids_AK, log_probs_AK, log_tail_A).sum().backward()
    q_AV, p_AV = student_AV.detach().double().softmax(-1), teacher_AV.double().softmax(-1)
    student_kept_A1 = q_AV.gather(-1, ids_AK).sum(-1, keepdim=True)
    teacher_kept_A1 = p_AV.gather(-1, ids_AK).sum(-1, keepdim=True)
    outside_AV = q_AV * (teacher_kept_A1 - student_kept_A1) / (1 - student_kept_A1)
    expected_AV = outside_AV.scatter(-1, ids_AK, (q_AV - p_AV).gather(-1, ids_AK))
    torch.testing.assert_close(student_AV.grad, expected_AV.float(), rtol=1e-4, atol=1e-6)


KINDS = pytest.mark.parametrize("names", [("ids", "log_probs", "log_tail"), ("ids",)], ids=["top_k", "samples"])


@KINDS
def test_gradient_equals_finite_differences(logits, names):
    student_AV, teacher_AV = logits
    rows = dict(zip(names, keep(teacher_AV, 4), strict=False))
    student_AV = student_AV.clone().requires_grad_()
    kept_forward_kl(student_AV, rows).sum().backward()
    assert student_AV.grad is not None
    step = 1e-2
    for row, column in itertools.product((0, 3), range(VOCAB)):
        moved = torch.zeros(NUM_TOKENS, VOCAB)
        moved[row, column] = step
        with torch.no_grad():
            higher, lower = (kept_forward_kl(student_AV + sign * moved, rows) for sign in (1, -1))
            slope = (higher - lower).sum() / (2 * step)
        torch.testing.assert_close(student_AV.grad[row, column], slope, rtol=1e-2, atol=1e-4)


def test_everything_kept_has_a_finite_gradient_and_padding_may_have_probability_zero(logits):
    student_AV, teacher_AV = (tensor.clone() for tensor in logits)
    student_AV[:, -2:], teacher_AV[:, -2:] = -torch.inf, -torch.inf
    student_AV.requires_grad_()
    for k in (3, VOCAB - 2, VOCAB):
        loss_A = top_k_kl(student_AV, *keep(teacher_AV, k))
        assert loss_A.isfinite().all()
        (grad_AV,) = torch.autograd.grad(loss_A.sum(), student_AV)
        assert grad_AV.isfinite().all()
        assert (grad_AV[:, -2:] == 0).all()


def test_every_draw_of_two_is_unbiased_in_value_and_gradient(logits):
    """All pairs of tokens, each with its probability: exactly the mean over draws."""
    student_AV, teacher_AV = (tensor[:1].double().float() for tensor in logits)
    p_V, q_V = teacher_AV[0].softmax(-1), student_AV[0].softmax(-1)
    student_AV = student_AV.clone().requires_grad_()
    mean = torch.zeros(())
    for pair in itertools.product(range(VOCAB), repeat=2):
        loss_A = sampled_cross_entropy(student_AV, torch.tensor([pair]))
        mean = mean + p_V[pair[0]] * p_V[pair[1]] * loss_A[0]
    torch.testing.assert_close(mean.detach(), -(p_V * q_V.log()).sum())
    (grad_AV,) = torch.autograd.grad(mean, student_AV)
    torch.testing.assert_close(grad_AV[0], q_V - p_V)


def test_cross_entropy_counts_a_token_as_often_as_it_was_drawn(logits):
    student_AV, _ = logits
    log_q_AV = student_AV.double().log_softmax(-1)
    ids_AS = torch.tensor([[2, 2, 2, 7]]).expand(NUM_TOKENS, -1)
    expected_A = -(0.75 * log_q_AV[:, 2] + 0.25 * log_q_AV[:, 7]).float()
    torch.testing.assert_close(sampled_cross_entropy(student_AV, ids_AS), expected_A)


@KINDS
def test_chunks_of_rows_give_what_all_rows_give(logits, names):
    student_AV, teacher_AV = logits
    rows = dict(zip(names, keep(teacher_AV, 4), strict=False))
    chunks = [slice(0, 2), slice(2, 3), slice(3, NUM_TOKENS)]
    whole_A = kept_forward_kl(student_AV, rows)
    parts = [kept_forward_kl(student_AV[part], {name: kept[part] for name, kept in rows.items()}) for part in chunks]
    assert torch.equal(torch.cat(parts), whole_A)


def test_another_temperature_than_the_caches_is_refused(logits):
    with rejects("temperature", 1, 2.0, error=ValueError):
        kept_forward_kl(logits[0], {"ids": torch.zeros(NUM_TOKENS, 1, dtype=torch.int64)}, temperature=2.0)


def test_rounded_logits_are_computed_in_float32(logits):
    student_AV, teacher_AV = logits[0].bfloat16(), logits[1]
    kept = keep(teacher_AV, 4)
    assert torch.equal(top_k_kl(student_AV, *kept), top_k_kl(student_AV.float(), *kept))
    assert torch.equal(sampled_cross_entropy(student_AV, kept[0]), sampled_cross_entropy(student_AV.float(), kept[0]))


def test_no_row_is_no_loss_and_no_gradient_reaches_the_cache(logits):
    student_AV, teacher_AV = logits
    kept = keep(teacher_AV, 4)
    empty = [tensor[:0] for tensor in kept]
    assert top_k_kl(student_AV[:0], *empty).shape == sampled_cross_entropy(student_AV[:0], empty[0]).shape == (0,)
    log_probs_AK = kept[1].clone().requires_grad_()
    top_k_kl(student_AV.clone().requires_grad_(), kept[0], log_probs_AK, kept[2]).sum().backward()
    assert log_probs_AK.grad is None

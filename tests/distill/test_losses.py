"""forward_kl against its definition in float64, its limits, and its gradients.

Shape suffixes: A = answer tokens, V = vocabulary entries.
"""

import pytest
import torch

from distill.losses import forward_kl

TEMPERATURES = [0.5, 1.0, 2.0, 5.0]


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(0)
    student_AV = torch.randn(7, 11, generator=generator) * 3
    teacher_AV = torch.randn(7, 11, generator=generator) * 3
    return student_AV, teacher_AV


def reference_kl(student_AV, teacher_AV, temperature):
    """sum_x p(x) (log p(x) - log q(x)), token by token and entry by entry, in float64."""
    total = 0.0
    for student_V, teacher_V in zip(student_AV.double(), teacher_AV.double(), strict=True):
        q_V = torch.exp(student_V / temperature) / torch.exp(student_V / temperature).sum()
        p_V = torch.exp(teacher_V / temperature) / torch.exp(teacher_V / temperature).sum()
        total += sum(float(p * (p.log() - q.log())) for p, q in zip(p_V, q_V, strict=True))
    return temperature**2 * total


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_equals_the_definition(logits, temperature):
    assert forward_kl(*logits, temperature=temperature).item() == pytest.approx(
        reference_kl(*logits, temperature), rel=1e-5
    )


def test_zero_when_student_equals_teacher(logits):
    student, _ = logits
    assert forward_kl(student, student).item() == pytest.approx(0.0, abs=1e-6)


def test_a_sum_over_tokens_not_a_mean(logits):
    student, teacher = logits
    parts = [forward_kl(student[i : i + 1], teacher[i : i + 1]).item() for i in range(len(student))]
    assert forward_kl(student, teacher).item() == pytest.approx(sum(parts), rel=1e-5)


def test_nothing_kept_gives_zero_and_zero_gradient():
    student = torch.zeros(0, 11, requires_grad=True)
    loss = forward_kl(student, torch.zeros(0, 11))
    loss.backward()
    assert loss.item() == 0.0
    assert student.grad is not None
    assert student.grad.shape == (0, 11)


def test_no_gradient_reaches_the_teacher(logits):
    student, teacher = (tensor.clone().requires_grad_() for tensor in logits)
    forward_kl(student, teacher).backward()
    assert teacher.grad is None
    assert student.grad is not None


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_gradient_is_temperature_times_the_difference_of_probabilities(logits, temperature):
    student, teacher = logits
    student = student.clone().requires_grad_()
    forward_kl(student, teacher, temperature=temperature).backward()
    difference = (student / temperature).softmax(-1) - (teacher / temperature).softmax(-1)
    torch.testing.assert_close(student.grad, temperature * difference.detach())


def test_gradient_equals_finite_differences(logits):
    student, teacher = logits
    grad = torch.autograd.functional.jacobian(lambda x: forward_kl(x, teacher, temperature=2.0), student)
    step = 1e-5
    for row, column in [(0, 0), (3, 5), (6, 10)]:
        moved = [student.double().clone() for _ in range(2)]
        moved[0][row, column] += step
        moved[1][row, column] -= step
        up, down = (reference_kl(each, teacher, 2.0) for each in moved)
        assert grad[row, column].item() == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=1e-5)


def test_half_precision_logits_are_computed_in_float32(logits):
    student, teacher = (tensor.bfloat16() for tensor in logits)
    loss = forward_kl(student, teacher)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(reference_kl(student, teacher, 1.0), rel=1e-5)


def test_other_shapes_are_refused_with_both_named():
    with pytest.raises(ValueError, match=r"got \(2, 11\) and \(2, 12\)"):
        forward_kl(torch.zeros(2, 11), torch.zeros(2, 12))

"""Every loss against its definition in float64, its limits, and its gradients.

Shape suffixes: A = response tokens, V = vocabulary entries.
"""

import math

import pytest
import torch

from distill import losses
from distill.losses import LOSSES, Knowledge, LossTerm, Objective, build_objective, cross_entropy
from tests.distill.dense_losses import COMPARED
from tests.rejections import rejects

(
    forward_kl,
    reverse_kl,
    kl_mixture,
    jensen_shannon,
    skewed_forward_kl,
    skewed_reverse_kl,
    total_variation,
    negative_log_acceptance,
    lk_hybrid,
) = COMPARED.values()
TEMPERATURES = [0.5, 1.0, 2.0, 5.0]
SCALED = COMPARED.keys() - {"total_variation", "negative_log_acceptance", "lk_hybrid"}  # by temperature**2


def kl(a, b):
    return float((a * (a / b).log()).sum())


def alpha(p, q):
    return float(torch.minimum(p, q).sum())


def lk(p, q, decay):
    weight = math.exp(-decay * alpha(p, q))
    return weight * kl(p, q) + (1 - weight) * (1 - alpha(p, q))


DEFINITIONS = {  # of one token, p the teacher's distribution and q the student's, in float64
    "forward_kl": [({}, kl)],
    "reverse_kl": [({}, lambda p, q: kl(q, p))],
    "kl_mixture": [
        ({}, lambda p, q: 0.9 * kl(p, q) + 0.1 * kl(q, p)),
        ({"forward_weight": 0.3}, lambda p, q: 0.3 * kl(p, q) + 0.7 * kl(q, p)),
    ],
    "jensen_shannon": [
        ({}, lambda p, q: 0.5 * kl(p, (p + q) / 2) + 0.5 * kl(q, (p + q) / 2)),
        ({"beta": 0.2}, lambda p, q: 0.2 * kl(p, 0.2 * p + 0.8 * q) + 0.8 * kl(q, 0.2 * p + 0.8 * q)),
    ],
    "skewed_forward_kl": [
        ({}, lambda p, q: kl(p, 0.1 * p + 0.9 * q)),
        ({"skew": 0.4}, lambda p, q: kl(p, 0.4 * p + 0.6 * q)),
    ],
    "skewed_reverse_kl": [
        ({}, lambda p, q: kl(q, 0.1 * q + 0.9 * p)),
        ({"skew": 0.4}, lambda p, q: kl(q, 0.4 * q + 0.6 * p)),
    ],
    "total_variation": [({}, lambda p, q: 1 - alpha(p, q))],
    "negative_log_acceptance": [({}, lambda p, q: -math.log(alpha(p, q)))],
    "lk_hybrid": [({}, lambda p, q: lk(p, q, 3.0)), ({"decay": 0.7}, lambda p, q: lk(p, q, 0.7))],
}
CASES = [
    pytest.param(name, options, definition, id=f"{name} {options}")
    for name, cases in DEFINITIONS.items()
    for options, definition in cases
]
everyone = pytest.mark.parametrize("name", list(COMPARED))
every_case = pytest.mark.parametrize(("name", "options", "definition"), CASES)


def reference(name, definition, student_AV, teacher_AV, temperature):
    """Token by token in float64."""
    q_AV, p_AV = ((logits.double() / temperature).softmax(-1) for logits in (student_AV, teacher_AV))
    scale = temperature**2 if name in SCALED else 1.0
    values = [scale * definition(p, q) for p, q in zip(p_AV, q_AV, strict=True)]
    return torch.tensor(values, dtype=torch.float64)


def test_every_loss_has_a_definition():
    assert DEFINITIONS.keys() == COMPARED.keys()
    told_tokens = {name for name, loss in LOSSES.items() if Knowledge.TOKENS in loss.formulas}
    assert COMPARED.keys() | told_tokens == LOSSES.keys()


def test_every_loss_is_computed_by_the_formula_of_its_name():
    """Whatever else it has: forward_kl also has one for the entries that a cache keeps."""
    for name, loss in LOSSES.items():
        assert loss.formulas.get(Knowledge.LOGITS, loss.formulas.get(Knowledge.TOKENS)) is getattr(losses, name)


@every_case
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_equals_the_definition(logits, name, options, definition, temperature):
    found = COMPARED[name](*logits, temperature=temperature, **options)
    assert found.dtype == torch.float32
    expected = reference(name, definition, *logits, temperature)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@everyone
def test_zero_when_student_equals_teacher_and_nothing_pulls_it_away(logits, name):
    student = logits[0].clone().requires_grad_()
    loss = COMPARED[name](student, logits[0])
    torch.testing.assert_close(loss, torch.zeros(7), rtol=0, atol=2e-6)
    loss.sum().backward()
    torch.testing.assert_close(student.grad, torch.zeros(7, 11), rtol=0, atol=2e-6)


@everyone
def test_one_value_for_each_token_which_no_other_token_moves(logits, name):
    student, teacher = logits
    whole = COMPARED[name](student, teacher)
    assert whole.shape == (7,)
    for row in range(7):
        torch.testing.assert_close(whole[row : row + 1], COMPARED[name](student[row : row + 1], teacher[row : row + 1]))


@everyone
def test_nothing_kept_gives_zero_and_zero_gradient(name):
    student = torch.zeros(0, 11, requires_grad=True)
    loss = COMPARED[name](student, torch.zeros(0, 11)).sum()
    loss.backward()
    assert loss.item() == 0.0
    assert student.grad is not None
    assert student.grad.shape == (0, 11)


@everyone
def test_no_gradient_reaches_the_teacher(logits, name):
    student, teacher = (tensor.clone().requires_grad_() for tensor in logits)
    COMPARED[name](student, teacher).sum().backward()
    assert teacher.grad is None
    assert student.grad is not None


@pytest.mark.parametrize(("name", "options", "definition"), [case for case in CASES if "lk_hybrid" not in case.id])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_gradient_equals_finite_differences(logits, name, options, definition, temperature):
    student, teacher = logits
    student = student.clone().requires_grad_()
    COMPARED[name](student, teacher, temperature=temperature, **options).sum().backward()
    step = 1e-5
    for row, column in [(0, 0), (3, 5), (6, 10)]:
        moved = [student.detach().double().clone() for _ in range(2)]
        moved[0][row, column] += step
        moved[1][row, column] -= step
        up, down = (reference(name, definition, each, teacher, temperature).sum().item() for each in moved)
        assert student.grad[row, column].item() == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=1e-5)


def test_the_weight_of_lk_hybrid_passes_no_gradient(logits):
    q, p = (each.double().softmax(-1) for each in logits)
    below = (q <= p).double()
    weight = (-3 * torch.minimum(p, q).sum(-1, keepdim=True)).exp()
    expected = weight * (q - p) - (1 - weight) * q * (below - (q * below).sum(-1, keepdim=True))
    torch.testing.assert_close(gradient(lk_hybrid, *logits).double(), expected, rtol=1e-4, atol=1e-6)


def gradient(loss, student, teacher, **options):
    student = student.clone().requires_grad_()
    loss(student, teacher, **options).sum().backward()
    return student.grad


@everyone
@pytest.mark.parametrize("height", [1e2, 1e4, 1e6])
def test_probabilities_that_underflow_leave_losses_and_gradients_finite(name, height):
    student, teacher = torch.zeros(2, 5), torch.zeros(2, 5)
    student[:, 0] = teacher[0, 1] = teacher[1, 0] = height  # first token: disjoint; second: agreed
    student.requires_grad_()
    loss = COMPARED[name](student, teacher)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert student.grad.isfinite().all()
    assert loss[1].item() == pytest.approx(0.0, abs=2e-6)
    assert loss[0].item() > 0.6


def test_disjoint_distributions_still_learn_under_negative_log_acceptance():
    student, teacher = torch.tensor([[300.0, 0.0, -300.0]]), torch.tensor([[0.0, 300.0, -300.0]])
    assert gradient(total_variation, student, teacher).abs().max() == 0.0
    found = gradient(negative_log_acceptance, student, teacher)
    assert found[0, 0].item() > 0.4
    assert found[0, 1].item() < -0.4


def test_jensen_shannon_is_no_weighted_sum_of_two_kl(logits):
    """That sum, called "jsd" elsewhere, has no bound and is kl_mixture; the divergence with a mixture has ln 2."""
    far = (torch.tensor([[50.0, 0.0]]), torch.tensor([[0.0, 50.0]]))
    assert kl_mixture(*far).item() == pytest.approx(0.9 * 50 + 0.1 * 50)
    assert jensen_shannon(*far).item() == pytest.approx(math.log(2))
    torch.testing.assert_close(jensen_shannon(*logits), jensen_shannon(*reversed(logits)))
    assert "jsd" not in COMPARED


@everyone
def test_half_precision_logits_are_computed_in_float32(logits, name):
    rounded = [tensor.bfloat16() for tensor in logits]
    loss = COMPARED[name](*rounded)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, COMPARED[name](*(tensor.float() for tensor in rounded)))


@everyone
def test_other_shapes_are_refused_with_both_named(name):
    with rejects("(2, 11)", "(2, 12)", error=ValueError):
        COMPARED[name](torch.zeros(2, 11), torch.zeros(2, 12))


def test_cross_entropy_is_that_of_the_written_tokens(logits):
    student, ids = logits[0].bfloat16(), torch.arange(7) % 11
    expected = -student.double().log_softmax(-1)[torch.arange(7), ids]
    found = cross_entropy(student, ids)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_cross_entropy_of_nothing_is_zero():
    assert cross_entropy(torch.zeros(0, 11), torch.zeros(0, dtype=torch.long)).sum().item() == 0.0


def test_terms_are_weighted_and_take_their_options(logits):
    terms = [
        LossTerm(name="jensen_shannon", weight=2.0, beta=0.3),
        LossTerm(name="lk_hybrid", decay=1.0),
        LossTerm(name="cross_entropy", weight=0.5),
    ]
    ids = torch.arange(7)
    expected = (
        2 * jensen_shannon(*logits, temperature=3.0, beta=0.3)
        + lk_hybrid(*logits, temperature=3.0, decay=1.0)
        + 0.5 * cross_entropy(logits[0], ids)
    )
    torch.testing.assert_close(Objective(tuple(terms), 3.0)(*logits, ids), expected)


def test_only_tokens_need_no_teacher(logits):
    objective = build_objective("cross_entropy", temperature=1.0)
    assert not objective.needs_teacher
    assert build_objective([LossTerm(name="cross_entropy"), LossTerm(name="forward_kl")], temperature=1.0).needs_teacher
    ids = torch.arange(7)
    torch.testing.assert_close(objective(logits[0], None, ids), cross_entropy(logits[0], ids))

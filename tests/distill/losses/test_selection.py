"""Token selection: which tokens it takes, what they weigh, and that no split of a batch changes it."""

import pytest
import torch

from distill.formulas.dense import forward_kl, reverse_kl
from distill.losses.answer_logits import AnswerLogits, logits_of
from distill.losses.objective import build_objective
from distill.teacher import Selection, chosen_weights, load_teacher
from distill.training.batches import split_batch
from distill.training.model import DistillModel
from eval.models.loading import load_model

NUM_KEPT = (5, 1, 8)
TEMPERATURE = 2.0


def test_the_largest_gaps_are_taken_and_share_the_weight_of_all():
    gaps = torch.tensor([0.1, 0.5, -0.2, 0.4, 0.3, 9.0, -1.0, -3.0, -2.0])
    weights = chosen_weights(gaps, [5, 1, 3], fraction=0.4)
    assert weights.tolist() == [0, 2.5, 0, 2.5, 0, 1, 3, 0, 0]


@pytest.mark.parametrize("fraction", [0.01, 0.4, 0.5, 0.99])
def test_every_sequence_weighs_its_tokens(fraction):
    gaps = torch.randn(sum(NUM_KEPT), generator=torch.Generator().manual_seed(0))
    for weights, num_tokens in zip(
        chosen_weights(gaps, NUM_KEPT, fraction=fraction).split(NUM_KEPT), NUM_KEPT, strict=True
    ):
        assert weights.sum().item() == pytest.approx(num_tokens)
        assert weights.count_nonzero() == max(1, round(fraction * num_tokens))


def test_equal_gaps_are_taken_in_their_order():
    assert chosen_weights(torch.zeros(4), [4], fraction=0.5).tolist() == [2, 2, 0, 0]


def test_sequences_without_answer_tokens_and_no_sequences_at_all():
    assert chosen_weights(torch.ones(2), [0, 2, 0], fraction=0.5).tolist() == [2, 0]
    assert chosen_weights(torch.ones(0), [], fraction=0.5).tolist() == []


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    positions, kept = torch.arange(10), torch.tensor(NUM_KEPT)[:, None]
    return {
        "input_ids": torch.randint(3, 259, (3, 10), generator=generator),
        "next_ids": torch.randint(3, 259, (3, 10), generator=generator),
        "keep": positions >= 10 - kept,
    }


@pytest.fixture
def model(tiny_draft, tiny_target, make_checkpoint):
    reference = load_teacher(make_checkpoint(seed=7, num_hidden_layers=1), dtype="float32", device="cpu")
    return DistillModel(
        AnswerLogits(load_model(tiny_draft, dtype="float32", device="cpu")),
        load_teacher(tiny_target, dtype="float32", device="cpu"),
        objective=build_objective("reverse_kl", temperature=TEMPERATURE),
        selection=Selection(reference, fraction=0.4),
        cpu_bfloat16=False,
    )


def test_the_loss_is_that_of_the_tokens_with_most_left_to_learn(model, batch):
    inputs = batch["input_ids"], batch["keep"]
    student, teacher = model.student(*inputs, logits_of), model.teacher.logits(*inputs)
    reference = model.selection.reference.logits(*inputs)
    gaps = forward_kl(student, teacher, temperature=TEMPERATURE) - forward_kl(
        reference, teacher, temperature=TEMPERATURE
    )
    losses = reverse_kl(student, teacher, temperature=TEMPERATURE)
    total = 0.0
    for gap, loss in zip(gaps.split(NUM_KEPT), losses.split(NUM_KEPT), strict=True):
        chosen = sorted(range(len(gap)), key=lambda i: -gap[i].item())[: max(1, round(0.4 * len(gap)))]
        total += len(gap) * float(loss[chosen].mean())
    assert model.loss(model(batch), batch).item() == pytest.approx(total / sum(NUM_KEPT), rel=1e-5)


@pytest.mark.parametrize("chunk", [3, 100])
@pytest.mark.parametrize("size", [1, 2])
def test_no_split_of_a_batch_changes_its_gradient(monkeypatch, model, batch, size, chunk):
    monkeypatch.setattr("distill.losses.chunked.chunk_size", lambda _: chunk)

    def gradient(pieces):
        model.zero_grad()
        for piece in pieces:
            share = piece["keep"].sum() / batch["keep"].sum()  # as the trainer weighs micro-batches
            (model.loss(model(piece), piece) * share).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    whole, cut = gradient([batch]), gradient(split_batch(batch, size))
    assert (whole - cut).norm() < 1e-5 * whole.norm()


def test_only_chosen_tokens_reach_the_loss(model, batch):
    seen = []

    def watched(student_CV, teacher_CV, ids_C):
        seen.append(len(student_CV))
        return reverse_kl(student_CV, teacher_CV)

    watched.asks_teacher, watched.temperature = True, TEMPERATURE
    model.objective = watched
    model(batch)
    assert seen == [2 + 1 + 3]


def test_the_reference_is_not_trained_and_not_saved(model, batch):
    model.loss(model(batch), batch).backward()
    assert [name for name, _ in model.named_children()] == ["student"]
    assert all(name.startswith("student.") for name in model.state_dict())
    parameters = list(model.selection.reference.model.parameters())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in parameters)
    assert not {id(parameter) for parameter in parameters} & {id(parameter) for parameter in model.parameters()}

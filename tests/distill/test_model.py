"""The student beside its teacher: which positions count, what is trained and saved, in which precision."""

import pytest
import torch

from distill.answer_logits import AnswerLogits
from distill.losses import forward_kl
from distill.model import DistillModel
from distill.teacher import load_teacher
from eval.models import load_model

LENGTHS, NUM_KEPT = (9, 5, 12), (4, 1, 7)
OTHER_HEIGHT = {"rtol": 1e-5, "atol": 5e-5}  # float32: a product of more rows may sum in another order


@pytest.fixture
def batch():
    """Three sequences of different lengths, padded on the right."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(max(LENGTHS))
    lengths, kept = (torch.tensor(numbers)[:, None] for numbers in (LENGTHS, NUM_KEPT))
    real = positions < lengths
    return {
        "input_ids": torch.randint(3, 259, real.shape, generator=generator) * real,
        "attention_mask": real,
        "keep": real & (positions >= lengths - kept),
    }


def build(draft, target, *, temperature=1.0, cpu_bfloat16=False, teacher_dtype="float32"):
    student = AnswerLogits(load_model(draft, dtype="float32", device="cpu"))
    teacher = load_teacher(target, dtype=teacher_dtype, device="cpu")
    return DistillModel(student, teacher, temperature=temperature, cpu_bfloat16=cpu_bfloat16)


@pytest.fixture
def model(tiny_draft, tiny_target):
    return build(tiny_draft, tiny_target)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_logits_at_kept_positions_are_those_of_the_whole_model(make_checkpoint, batch, model_type):
    whole = load_model(make_checkpoint(model_type=model_type), dtype="float32", device="cpu")
    kept = AnswerLogits(whole)(batch["input_ids"], batch["keep"])
    rows = []
    for row, length in enumerate(LENGTHS):  # each sequence alone, without padding, through the model's own forward
        logits = whole(input_ids=batch["input_ids"][row : row + 1, :length]).logits[0]
        rows.append(logits[batch["keep"][row, :length]])
    torch.testing.assert_close(kept, torch.cat(rows), **OTHER_HEIGHT)


def test_the_head_runs_on_kept_positions_only(model, batch):
    widths = []
    model.student.lm.lm_head.register_forward_hook(lambda _module, args, _out: widths.append(args[0].shape))
    model.teacher.model.lm.lm_head.register_forward_hook(lambda _module, args, _out: widths.append(args[0].shape))
    model(batch)
    assert widths == [(sum(NUM_KEPT), 64)] * 2


def test_what_padding_holds_does_not_count(model, batch):
    before = model(batch)
    other = {**batch, "input_ids": torch.where(batch["attention_mask"], batch["input_ids"], 77)}
    assert not torch.equal(other["input_ids"], batch["input_ids"])
    for one, another in zip(before, model(other), strict=True):
        torch.testing.assert_close(one, another, rtol=0, atol=0)


def test_loss_is_the_mean_over_kept_tokens(model, batch):
    outputs = model(batch)
    expected = forward_kl(*outputs).sum() / sum(NUM_KEPT)
    torch.testing.assert_close(model.loss(outputs, batch), expected)


def test_loss_follows_the_temperature(tiny_draft, tiny_target, batch):
    model = build(tiny_draft, tiny_target, temperature=3.0)
    outputs = model(batch)
    expected = forward_kl(*outputs, temperature=3.0).sum() / sum(NUM_KEPT)
    torch.testing.assert_close(model.loss(outputs, batch), expected)


def test_dropping_tokens_drops_their_loss_and_their_gradient(model, batch):
    def gradient(keep):
        model.zero_grad()
        chosen = {**batch, "keep": keep}
        loss = model.loss(model(chosen), chosen)
        loss.backward()
        return loss * keep.sum(), torch.cat([p.grad.flatten() for p in model.parameters()]) * keep.sum()

    rows = torch.tensor([True, False, False])[:, None]
    whole, first, rest = (gradient(keep) for keep in (batch["keep"], batch["keep"] & rows, batch["keep"] & ~rows))
    torch.testing.assert_close(whole[0], first[0] + rest[0])
    torch.testing.assert_close(whole[1], first[1] + rest[1], rtol=1e-4, atol=1e-5)  # float32, summed in another order


def test_no_kept_token_gives_zero_loss_and_finite_gradients(model, batch):
    nothing = {**batch, "keep": torch.zeros_like(batch["keep"])}
    loss = model.loss(model(nothing), nothing)
    loss.backward()
    assert loss.item() == 0.0
    assert all(torch.count_nonzero(p.grad) == 0 for p in model.parameters() if p.grad is not None)


def test_only_the_student_is_registered(model):
    assert [name for name, _ in model.named_children()] == ["student"]
    assert all(name.startswith("student.") for name in model.state_dict())
    teacher = {id(parameter) for parameter in model.teacher.model.parameters()}
    assert not teacher & {id(parameter) for parameter in model.parameters()}


def test_training_leaves_the_teacher_alone(model, batch):
    before = [parameter.clone() for parameter in model.teacher.model.parameters()]
    model.train()
    assert model.student.training
    assert not any(module.training for module in model.teacher.model.modules())
    model.loss(model(batch), batch).backward()
    for parameter, old in zip(model.teacher.model.parameters(), before, strict=True):
        assert not parameter.requires_grad
        assert parameter.grad is None
        assert torch.equal(parameter, old)


def test_a_student_equal_to_its_teacher_has_nothing_to_learn(tiny_target, batch):
    model = build(tiny_target, tiny_target)
    outputs = model(batch)
    loss = model.loss(outputs, batch)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    metrics = model.get_metrics(is_train=False)
    for metric in metrics.values():
        model.update_metric(batch, outputs, metric)
        assert metric.compute().item() == pytest.approx(1.0, abs=1e-6)


def test_an_evaluation_takes_outputs_that_are_at_hand(model, batch):
    outputs = model(batch)
    assert model.eval_forward(batch, outputs) is outputs
    for one, other in zip(model.eval_forward(batch), outputs, strict=True):
        assert torch.equal(one, other)


def test_metrics_are_for_evaluation_only(model):
    assert list(model.get_metrics(is_train=False)) == ["alpha", "greedy_match"]
    assert model.get_metrics(is_train=True) == {}


def test_bfloat16_on_a_processor_is_in_the_student_and_not_in_the_loss(tiny_draft, tiny_target, batch):
    model = build(tiny_draft, tiny_target, cpu_bfloat16=True, teacher_dtype="bfloat16")
    student_logits, teacher_logits = model(batch)
    assert (student_logits.dtype, teacher_logits.dtype) == (torch.bfloat16, torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.dtype for p in model.teacher.model.parameters()} == {torch.bfloat16}
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as Composer surrounds a loss on a GPU
        loss = model.loss((student_logits, teacher_logits), batch)
    assert loss.dtype == torch.float32
    expected = forward_kl(student_logits.double(), teacher_logits.double()).sum() / sum(NUM_KEPT)
    torch.testing.assert_close(loss, expected)


def test_autocast_around_it_does_not_change_the_teacher(model, batch):
    exact = model.teacher.logits(batch["input_ids"], batch["keep"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        surrounded = model.teacher.logits(batch["input_ids"], batch["keep"])
    assert surrounded.dtype == torch.float32
    assert torch.equal(exact, surrounded)


def test_float32_stays_float32_without_bfloat16(model, batch):
    assert [logits.dtype for logits in model(batch)] == [torch.float32, torch.float32]


def test_each_transformer_block_is_a_unit_to_shard(model):
    units = [name for name, module in model.student.named_modules() if model.student.fsdp_wrap_fn(module)]
    assert units == ["lm.model.layers.0", "lm.model.layers.1"]

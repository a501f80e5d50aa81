"""The student beside its teacher: which positions count, what is trained and saved, in which precision."""

import numpy as np
import pytest
import torch

from architectures.shapes import Shape
from distill.chunked_loss import ResponseLogits, logits_of
from distill.data.batches import ResponseDataset, collate
from distill.estimate import forward_flops, training_flops
from distill.losses import build_objective, forward_kl
from distill.metrics import KS, eval_metrics, quantities_of_rows, responses_of
from distill.model import DistillModel, HeldOut
from distill.teacher import load_teacher
from eval.decoding.sampling import Limits
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.models import load_model
from eval.responses import Trace

LENGTHS, NUM_KEPT = (9, 5, 12), (4, 1, 7)
OTHER_HEIGHT = {"rtol": 1e-5, "atol": 5e-5}  # float32: a product of more rows may sum in another order


def padded_batch():
    """Three sequences of different lengths, padded on the right."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(max(LENGTHS))
    lengths, kept = (torch.tensor(numbers)[:, None] for numbers in (LENGTHS, NUM_KEPT))
    real = positions < lengths
    return {
        "input_ids": torch.randint(3, 259, real.shape, generator=generator) * real,
        "attention_mask": real,
        "keep": real & (positions >= lengths - kept),
        "next_ids": torch.randint(3, 259, real.shape, generator=generator),
        "task": torch.tensor([[0], [1], [0]]),
    }


@pytest.fixture
def batch():
    return padded_batch()


def build(draft, target, *, loss="forward_kl", temperature=1.0, cpu_bfloat16=False, teacher_dtype="float32", **more):
    student = ResponseLogits(load_model(draft, dtype="float32", device="cpu"))
    teacher = load_teacher(target, dtype=teacher_dtype, device="cpu")
    objective = build_objective(loss, temperature=temperature)
    return DistillModel(student, teacher, objective=objective, cpu_bfloat16=cpu_bfloat16, **more)


def both_logits(model, batch):
    """What student and teacher say at the kept positions, whole."""
    inputs = batch["input_ids"], batch["keep"]
    return model.student(*inputs, logits_of), model.teacher.logits(*inputs)


def mean_loss(model, batch):
    return model.loss(model(batch), batch)


@pytest.fixture
def model(tiny_draft, tiny_target):
    return build(tiny_draft, tiny_target)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama"},
        {"model_type": "gemma2", "final_logit_softcapping": 1.5, "query_pre_attn_scalar": 16},
        {"model_type": "granite", "logits_scaling": 3.0},
    ],
    ids=lambda config: config["model_type"],
)
def test_logits_at_kept_positions_are_those_of_the_whole_model(make_checkpoint, batch, config):
    whole = load_model(make_checkpoint(**config), dtype="float32", device="cpu")
    kept = ResponseLogits(whole)(batch["input_ids"], batch["keep"], logits_of)
    rows = []
    for row, length in enumerate(LENGTHS):  # each sequence alone, without padding, through the model's own forward
        logits = whole(input_ids=batch["input_ids"][row : row + 1, :length]).logits[0]
        rows.append(logits[batch["keep"][row, :length]])
    torch.testing.assert_close(kept, torch.cat(rows), **OTHER_HEIGHT)


def test_the_head_runs_on_kept_positions_only(model, batch):
    read = {}
    for name, responses in (("student", model.student), ("teacher", model.teacher.model)):
        responses(batch["input_ids"], batch["keep"], lambda hidden, _, name=name: read.update({name: hidden.shape}))
    assert read == {"student": (sum(NUM_KEPT), 64), "teacher": (sum(NUM_KEPT), 64)}


def test_what_padding_holds_does_not_count(model, batch):
    other = {
        **batch,
        "input_ids": torch.where(batch["attention_mask"], batch["input_ids"], 77),
        "next_ids": torch.where(batch["keep"], batch["next_ids"], 77),
    }
    assert not torch.equal(other["input_ids"], batch["input_ids"])
    assert torch.equal(model(batch), model(other))
    for one, another in zip(both_logits(model, batch), both_logits(model, other), strict=True):
        assert torch.equal(one, another)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_loss_is_the_mean_over_kept_tokens(tiny_draft, tiny_target, batch, temperature):
    model = build(tiny_draft, tiny_target, temperature=temperature)
    expected = forward_kl(*both_logits(model, batch), temperature=temperature).sum() / sum(NUM_KEPT)
    torch.testing.assert_close(mean_loss(model, batch), expected)


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
    model = build(tiny_target, tiny_target, held_out=HeldOut(temperature=1.0))
    loss = mean_loss(model, batch)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    outputs = model.eval_forward(batch)
    steps = {f"tau_{k}": sum(-(-length // (k + 1)) for length in NUM_KEPT) for k in KS}
    for name, metric in model.get_metrics(is_train=False).items():
        model.update_metric(batch, outputs, metric)
        expected = sum(NUM_KEPT) / steps[name] if name in steps else 1.0
        assert metric.compute().item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("size", [1, 5, 100])
def test_an_evaluation_gives_every_metric_of_every_kept_token(monkeypatch, model, batch, size):
    monkeypatch.setattr("distill.chunked_loss.chunk_size", lambda _: size)
    model.held_out = HeldOut(temperature=0.7, top_p=0.9)
    found = model.eval_forward(batch)
    logits, ids = both_logits(model, batch), batch["next_ids"][batch["keep"]]
    expected = responses_of(quantities_of_rows(*logits, ids, temperature=0.7, top_p=0.9).detach(), NUM_KEPT)
    for one, other in zip(found, expected, strict=True):
        for name in ("alpha", "match", "accept"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4)


def test_tokens_alone_are_learned_without_asking_the_teacher(monkeypatch, tiny_draft, tiny_target, batch):
    model = build(tiny_draft, tiny_target, loss="cross_entropy")
    expected = torch.nn.functional.cross_entropy(both_logits(model, batch)[0], batch["next_ids"][batch["keep"]])
    monkeypatch.setattr(model.teacher, "rows", None)
    torch.testing.assert_close(mean_loss(model, batch), expected)


def test_responses_count_for_the_task_of_their_prompt(model, batch):
    model.held_out = HeldOut(tasks=("chat", "maths"), temperature=1.0)
    outputs, metrics = model.eval_forward(batch), model.get_metrics(is_train=False)
    for metric in metrics.values():
        model.update_metric(batch, outputs, metric)
    assert len(metrics) == 3 * len(eval_metrics())
    alphas = {name: metrics[name].compute().item() for name in ("alpha", "chat/alpha", "maths/alpha")}
    assert alphas["alpha"] == pytest.approx(np.concatenate([each.alpha for each in outputs]).mean())
    assert alphas["chat/alpha"] == pytest.approx(np.concatenate([outputs[0].alpha, outputs[2].alpha]).mean())
    assert alphas["maths/alpha"] == pytest.approx(outputs[1].alpha.mean())


def test_flops_count_real_tokens_and_kept_positions(model, batch):
    student, teacher = (Shape.from_config(lm.config.to_dict()) for lm in (model.student.lm, model.teacher.model.lm))
    responses = list(zip(LENGTHS, NUM_KEPT, strict=True))
    of_teacher = forward_flops(teacher, responses)
    assert model.flops_per_batch(batch) == training_flops(student, responses, teacher=of_teacher)
    model.objective = build_objective("cross_entropy", temperature=1.0)
    assert model.flops_per_batch(batch) == training_flops(student, responses, teacher=0)


def test_bfloat16_on_a_processor_is_in_the_student_and_not_in_the_loss(tiny_draft, tiny_target, batch):
    model = build(tiny_draft, tiny_target, cpu_bfloat16=True, teacher_dtype="bfloat16")
    seen = []

    def watched(student_CV, teacher_CV, ids_C):
        assert not torch.is_autocast_enabled("cpu")
        seen.append((student_CV, teacher_CV))
        return forward_kl(student_CV, teacher_CV)

    watched.needs_teacher = True
    model.objective = watched
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as Composer surrounds a loss on a GPU
        loss = mean_loss(model, batch)
    [(student_logits, teacher_logits)] = seen
    assert (student_logits.dtype, teacher_logits.dtype) == (torch.bfloat16, torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.dtype for p in model.teacher.model.parameters()} == {torch.bfloat16}
    assert loss.dtype == torch.float32
    expected = forward_kl(student_logits.double(), teacher_logits.double()).sum() / sum(NUM_KEPT)
    torch.testing.assert_close(loss, expected)


def test_autocast_around_it_does_not_change_the_teacher(model, batch):
    exact = model.teacher.logits(batch["input_ids"], batch["keep"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        surrounded = model.teacher.logits(batch["input_ids"], batch["keep"])
    assert surrounded.dtype == torch.float32
    assert torch.equal(exact, surrounded)


def test_each_transformer_block_is_a_unit_to_shard(model):
    units = [name for name, module in model.student.named_modules() if model.student.fsdp_wrap_fn(module)]
    assert units == ["lm.model.layers.0", "lm.model.layers.1"]


def padded_checkpoint(folder, out, vocab_size):
    """The same model with more rows, of large random numbers, behind those of its embeddings; untied."""
    lm = load_model(folder, dtype="float32", device="cpu")
    state = {name: tensor.clone() for name, tensor in lm.state_dict().items()}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = vocab_size - len(state[name])
        more = torch.randn(rows, state[name].shape[1], generator=torch.Generator().manual_seed(3)) * 5
        state[name] = torch.cat([state[name], more])
    config = lm.config
    config.vocab_size, config.tie_word_embeddings = vocab_size, False
    padded = type(lm)(config)
    padded.load_state_dict(state)
    padded.save_pretrained(out)
    return out


@pytest.mark.parametrize("padded", ["student", "teacher"])
def test_ids_that_pad_one_vocabulary_have_no_probability(make_checkpoint, tmp_path, batch, padded):
    """Loss, gradients and metrics are those of the pair before one of them was padded."""
    folders = {"student": make_checkpoint(seed=2, num_hidden_layers=2, tie_word_embeddings=False)}
    folders["teacher"] = make_checkpoint(seed=1, tie_word_embeddings=False)
    found = []
    for name in ("", padded):
        if name:
            folders[name] = padded_checkpoint(folders[name], tmp_path / name, 272)
        model = build(folders["student"], folders["teacher"])
        loss = mean_loss(model, batch)
        loss.backward()
        found.append((loss.item(), model.eval_forward(batch), model.student.lm))
    (loss, metrics, lm), (padded_loss, padded_metrics, padded_lm) = found
    assert padded_loss == pytest.approx(loss, rel=1e-6)
    for one, other in zip(padded_metrics, metrics, strict=True):
        assert one.alpha == pytest.approx(other.alpha, rel=1e-5)
        assert one.accept == pytest.approx(other.accept, rel=1e-5)
    for name, parameter in padded_lm.named_parameters():
        expected = lm.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad[: len(expected)], expected)
        assert torch.count_nonzero(parameter.grad[len(expected) :]) == 0


PROMPT, RESPONSE = (5, 9, 70), (80, 11, 7, 200, 33, 2)


def answered(response=RESPONSE):
    trace = Trace(0, "a:1", (), PROMPT, response, "", "stop")
    return collate(list(ResponseDataset([trace], max_seq_len=100)))


@pytest.mark.parametrize("place", range(len(RESPONSE)))
def test_the_loss_of_a_wrong_token_is_not_shifted_by_one(tiny_draft, tiny_target, place):
    """The loss on one token alone is that of what both models say after the tokens before it, and no later ones."""
    model, batch = build(tiny_draft, tiny_target), answered()
    positions = batch["keep"][0].nonzero()[:, 0]
    keep = torch.zeros_like(batch["keep"])
    keep[0, positions[place]] = True
    wrong = {**batch, "keep": keep}
    assert batch["next_ids"][keep].tolist() == [RESPONSE[place]]
    before = torch.tensor([[*PROMPT, *RESPONSE[:place]]])
    said = [lm(before).logits[:, -1] for lm in (model.student.lm, model.teacher.model.lm)]
    torch.testing.assert_close(model.loss(model(wrong), wrong), forward_kl(*said).sum())


def test_multi_query_models_are_trained_and_decoded(make_checkpoint):
    folders = [make_checkpoint(seed=seed, num_key_value_heads=1, num_hidden_layers=2) for seed in (1, 2)]
    model, batch = build(*folders), answered()
    model.loss(model(batch), batch).backward()
    for name, parameter in model.student.lm.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    models = [load_model(folder, dtype="float32", device="cpu") for folder in folders]
    prompts, limits = [[5], [9, 70, 4]], Limits(12)
    decoded = speculative_decode(*models, prompts, limits=limits)
    plain = plain_decode(models[0], prompts, limits=limits)
    assert [text.token_ids for text in decoded] == [text.token_ids for text in plain]

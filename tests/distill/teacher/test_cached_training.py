"""Training from a cache of the teacher: it learns what the live teacher, or the entries kept of it, would teach.

Tolerances are for float32: a cached hidden state was computed in another batch than the live one, whose products may
sum in another order.
"""

from pathlib import Path

import pytest
import torch

import distill.response_batches
import distill.trainer
from distill.estimate import forward_flops, head_flops
from distill.losses import forward_kl, sampled_cross_entropy, top_k_kl
from distill.pipeline import cache_stage
from distill.response_batches import cut_padding, read_responses, split_batch
from distill.run import Run
from distill.teacher_cache import CachedResponses, TeacherCache, join_rows, rows_in
from distill.train import train
from distill.trainer import build_model
from tests.distill.after_training import assert_resumes, greatest_difference, metrics
from tests.rejections import rejects

VOCAB = 264
LOSS_RTOL = 1e-6
WEIGHTS_ATOL = 1e-5  # after six steps at learning rate 1e-3; Adam's steps do not shrink with small gradients
HALF_RTOL = 1e-3  # log-probabilities of a top-k cache are float16
HIDDEN = {"source": "cache"}
TOP_K = {"source": "cache", "contents": "top_k", "k": 5}
SAMPLES = {"source": "cache", "contents": "samples", "num_samples": 7}
CONTENTS = pytest.mark.parametrize("teacher", [HIDDEN, TOP_K, SAMPLES], ids=["hidden", "top_k", "samples"])


@pytest.fixture
def cached(make_run):
    """cached(name, teacher, **keys of distill) -> Recipe whose cache is written."""

    def make(name, teacher, **more):
        recipe = make_run(name, teacher=teacher, **more)
        cache_stage(Run.of(recipe))
        return recipe

    return make


def reject_to_load(*_, **__):
    raise AssertionError("a cached teacher has no weights but its head's")


def values(recipe, name: str) -> list[float]:
    return [record[name] for record in metrics(recipe).values() if name in record]


def responses_of(recipe, name="train") -> CachedResponses:
    responses = dict(zip(("train", "eval"), read_responses(Run.of(recipe)), strict=True))[name]
    return CachedResponses(responses, TeacherCache(Path(recipe.run_dir) / "teacher_cache", name))


def model_of(recipe):
    return build_model(Run.of(recipe), eval_tasks=())


def batch_of(recipe, *responses: int):
    dataset = responses_of(recipe)
    return dataset.collate([dataset[response] for response in responses])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "loss": [{"name": "reverse_kl"}, {"name": "cross_entropy", "weight": 0.5}],
            "temperature": 2.0,
            "device_train_microbatch_size": 1,
        },
    ],
    ids=["forward_kl", "sum at a temperature in micro-batches"],
)
def test_hidden_states_teach_what_the_live_teacher_teaches(make_run, cached, monkeypatch, settings):
    live, read = make_run("live", **settings), cached("read", HIDDEN, **settings)
    train(live)
    monkeypatch.setattr(distill.trainer, "load_teacher", reject_to_load)
    train(read)
    losses = [values(recipe, "loss/train/total") for recipe in (live, read)]
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=LOSS_RTOL)
    assert greatest_difference(live, read) < WEIGHTS_ATOL
    for name in ("alpha", "greedy_match", "tau_5"):
        found = [values(recipe, f"metrics/eval/{name}") for recipe in (live, read)]
        assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_every_entry_teaches_what_the_live_teacher_teaches(make_run, cached):
    live, read = make_run("live", loss="forward_kl"), cached("read", {**TOP_K, "k": VOCAB})
    train(live)
    train(read)
    assert values(read, "loss/train/total") == pytest.approx(values(live, "loss/train/total"), rel=HALF_RTOL)
    assert values(read, "metrics/eval/alpha") == pytest.approx(values(live, "metrics/eval/alpha"), rel=HALF_RTOL)


@CONTENTS
def test_loss_and_gradient_are_those_of_the_rows_kept(cached, teacher):
    weighted = [{"name": "forward_kl", "weight": 2.0}, {"name": "cross_entropy", "weight": 0.5}]
    recipe = cached("run", teacher, loss=weighted)
    model, chosen = model_of(recipe), (7, 0, 9, 3)
    batch = batch_of(recipe, *chosen)
    model.loss(model(batch), batch).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    found_loss = model.loss(model(batch), batch)
    model.zero_grad()
    cache = TeacherCache(Path(recipe.run_dir) / "teacher_cache", "train")
    rows = join_rows([cache.rows(response) for response in chosen])
    student = model.student(batch["input_ids"], batch["keep"], lambda hidden, head: head.logits(hidden))
    comparison = {
        "hidden": lambda: forward_kl(student, model.teacher.head.logits(rows["hidden"])),
        "top_k": lambda: top_k_kl(student, rows["ids"], rows["log_probs"], rows["log_tail"]),
        "samples": lambda: sampled_cross_entropy(student, rows["ids"]),
    }[recipe.distill.teacher.contents]()
    tokens = torch.nn.functional.cross_entropy(student, batch["next_ids"][batch["keep"]], reduction="none")
    expected = (2 * comparison + 0.5 * tokens).mean()
    expected.backward()
    torch.testing.assert_close(found_loss, expected)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)


@CONTENTS
def test_a_split_batch_says_what_the_whole_batch_says(cached, teacher):
    recipe = cached("run", teacher)
    model, batch = model_of(recipe), batch_of(recipe, 4, 1, 8, 2, 6)
    whole = rows_in(batch)
    assert {len(rows) for rows in whole.values()} == {int(batch["keep"].sum())}
    for size in (1, 2, 3):
        pieces = [cut_padding(piece) for piece in split_batch(batch, size)]
        assert len(pieces) == -(-5 // size)
        parts = [rows_in(piece) for piece in pieces]
        assert all(torch.equal(torch.cat([part[name] for part in parts]), rows) for name, rows in whole.items())
        torch.testing.assert_close(sum(model(piece) for piece in pieces), model(batch), rtol=1e-5, atol=1e-5)


@CONTENTS
def test_resumed_equals_uninterrupted_bit_for_bit(cached, stopped, teacher):
    """In the second epoch."""
    straight, resumed = cached("straight", teacher), cached("resumed", teacher)
    assert_resumes(straight, resumed, stopped(distill.trainer, "build_loggers", 5))
    assert values(resumed, "loss/train/total") == values(straight, "loss/train/total")


def test_a_cache_of_other_responses_is_refused(cached, monkeypatch):
    recipe = cached("run", TOP_K)
    monkeypatch.setattr(distill.response_batches, "read_responses", lambda *given: read_responses(*given)[::-1])
    with rejects("train"):
        train(recipe)


@CONTENTS
def test_flops_count_what_is_done_of_the_teacher(cached, teacher):
    recipe = cached("run", teacher)
    model, batch = model_of(recipe), batch_of(recipe, 1, 5)
    lengths = zip(batch["attention_mask"].sum(1).tolist(), batch["keep"].sum(1).tolist(), strict=True)
    student = 3 * forward_flops(model.shape, lengths)
    head = int(batch["keep"].sum()) * head_flops(VOCAB, 64) if teacher == HIDDEN else 0
    assert model.flops_per_batch(batch) == student + head


@pytest.fixture
def narrow(make_checkpoint):
    """A draft whose vocabulary is padded to fewer entries than the target's."""
    return make_checkpoint(seed=2, num_hidden_layers=2, vocab_size=260)


@pytest.mark.parametrize("teacher", [TOP_K, SAMPLES], ids=["top_k", "samples"])
def test_entries_beyond_the_students_vocabulary_are_refused(cached, narrow, teacher):
    recipe = cached("run", teacher, init=narrow)
    with rejects("distill.teacher.contents", "hidden"):
        train(recipe)


def test_hidden_states_teach_a_student_of_fewer_entries(make_run, cached, narrow):
    settings = {"init": narrow, "max_duration": "2ba"}
    live, read = make_run("live", **settings), cached("read", HIDDEN, **settings)
    train(live)
    train(read)
    assert values(read, "loss/train/total") == pytest.approx(values(live, "loss/train/total"), rel=LOSS_RTOL)
    assert greatest_difference(live, read) < WEIGHTS_ATOL


def test_autocast_around_it_does_not_change_what_a_cached_teacher_says(cached):
    recipe = cached("run", HIDDEN)
    model, batch = model_of(recipe), batch_of(recipe, 2, 3)
    exact = model.rows_of(model.teacher, batch).logits(slice(None))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        surrounded = model.rows_of(model.teacher, batch).logits(slice(None))
    assert torch.equal(exact, surrounded)

"""A student whose head says some ids alone: what it learns is what whole logits without the other ids would teach it.

Shape suffixes: A = response tokens that are learned, V = vocabulary entries, K = rows of the small head.
"""

import copy

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from architectures.vocabulary_head import cut_head
from distill.chunked_loss import ResponseLogits, head_of, learned, logits_of
from distill.estimate import forward_flops, training_flops
from distill.losses import build_objective, cross_entropy, kept_forward_kl
from distill.metrics import quantities_of_rows
from distill.model import DistillModel, HeldOut
from distill.teacher import CachedTeacher, Teacher
from distill.teacher_cache import sampled_rows, top_k_rows, uniform_numbers, widen
from distill.text_training import student_losses, teacher_losses
from eval.models import load_model
from tests.distill.dense_losses import COMPARED
from tests.distill.small_heads import IDS, VOCAB, masked
from tests.distill.test_model import LENGTHS, NUM_KEPT, padded_batch

TEMPERATURE = 2.0
ENTRIES = ("top_k", "samples")
LOSSES = [*((name, source) for name in (*COMPARED, "cross_entropy") for source in ("live", "hidden"))]
LOSSES += [("forward_kl", source) for source in ENTRIES]


@pytest.fixture(scope="module")
def whole(make_checkpoint):
    """A student that says every id, before its head is cut; tied and untied."""
    folders = {tied: make_checkpoint(seed=2, num_hidden_layers=2, tie_word_embeddings=tied) for tied in (True, False)}
    return {tied: load_model(folder, dtype="float32", device="cpu") for tied, folder in folders.items()}


@pytest.fixture(scope="module")
def target(tiny_target):
    return ResponseLogits(load_model(tiny_target, dtype="float32", device="cpu"))


@pytest.fixture(scope="module")
def batch():
    """Three responses, of the second of which the head can say nothing."""
    found = padded_batch()
    found["next_ids"][1] = next(id_ for id_ in range(3, 259) if id_ not in IDS)
    assert said(found).sum() in range(3, sum(NUM_KEPT) - 2)
    return found


def said(batch) -> torch.Tensor:
    """Positions that are learned."""
    return batch["keep"] & torch.isin(batch["next_ids"], torch.tensor(IDS))


def small(lm, ids=IDS):
    """The model with a head of these ids alone."""
    lm = copy.deepcopy(lm)
    cut_head(lm, torch.tensor(ids))
    return lm


def with_cache(batch, contents, target, *, rows=None):
    """The batch with what a cache of these contents kept of each response, of all of its tokens."""
    logits_AV, num_kept = target(batch["input_ids"], batch["keep"], logits_of).detach(), batch["keep"].sum(1).tolist()
    if contents == "hidden":
        kept = {"hidden": target(batch["input_ids"], batch["keep"], lambda hidden, _: hidden).detach()}
    elif contents == "top_k":
        kept = widen(top_k_rows(logits_AV if rows is None else logits_AV[:, rows], 5))
    else:
        of_rows = logits_AV if rows is None else logits_AV[:, rows]
        kept = widen(sampled_rows(of_rows, uniform_numbers(len(of_rows), 6, seed=1)))
    padded = {name: pad_sequence(each.split(num_kept), batch_first=True) for name, each in kept.items()}
    return {**batch, **{f"teacher_{name}": each for name, each in padded.items()}}


def distilled(lm, target, source, loss, *, temperature=1.0, **more):
    """A DistillModel as the trainer builds it."""
    teacher = Teacher(target) if source == "live" else CachedTeacher(head_of(target.lm))
    objective = build_objective(loss, temperature=temperature)
    return DistillModel(ResponseLogits(lm), teacher, objective=objective, cpu_bfloat16=False, **more)


def plain(lm, target, batch, source, loss, *, temperature=1.0):
    """Loss over all response tokens from whole logits of both models, every other id at probability 0."""
    keep, models = said(batch), (ResponseLogits(lm), target)
    student_AV, teacher_AV = (masked(model(batch["input_ids"], keep, logits_of)) for model in models)
    ids_A = batch["next_ids"][keep]
    if source in ENTRIES:
        rows = with_cache(batch, source, target, rows=list(IDS))
        kept = {name.removeprefix("teacher_"): rows[name][said_rows(batch)] for name in rows if "teacher_" in name}
        losses_A = kept_forward_kl(student_AV, {**kept, "ids": torch.tensor(IDS)[kept["ids"]]})
    elif loss == "cross_entropy":
        losses_A = cross_entropy(student_AV, ids_A)
    else:
        losses_A = COMPARED[loss](student_AV, teacher_AV.detach(), temperature=temperature)
    return losses_A.sum() / batch["keep"].sum()


def said_rows(batch) -> torch.Tensor:
    """Of the padded rows of a cache, those of positions that are learned."""
    places, width = said(batch), int(batch["keep"].sum(1).max())
    rows = [of_response[kept] for of_response, kept in zip(places, batch["keep"], strict=True)]
    return pad_sequence([torch.cat([row, row.new_zeros(width - len(row))]) for row in rows], batch_first=True)


def gradients(loss, lm) -> dict[str, torch.Tensor]:
    """Of every parameter, by name; the head under its own also where it is the embedding."""
    lm.zero_grad()
    loss.backward()
    return {name: each.grad.clone() for name, each in lm.named_parameters() if each.grad is not None}


def assert_same_gradients(found, expected, *, tied):
    """The small head's rows are those of the whole one; a tied embedding's gradient is that of both uses."""
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    whole_VH = torch.zeros(VOCAB, found[head].shape[1])
    whole_VH[list(IDS)] = found[head]
    together = {**found, head: whole_VH}
    if tied:
        together[embedding] = together.pop(head) + found[embedding]
    assert together.keys() == expected.keys()
    for name in expected:
        difference = (together[name] - expected[name]).norm()
        assert difference <= 1e-5 * expected[name].norm() + 1e-7, (name, difference)


@pytest.mark.parametrize("chunk", [2, 100])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("loss", "source"), LOSSES)
def test_loss_and_gradient_are_those_of_whole_logits_without_the_other_ids(
    monkeypatch, whole, target, batch, loss, source, tied, chunk
):
    monkeypatch.setattr("distill.chunked_loss.chunk_size", lambda _: chunk)
    temperature = 1.0 if source in ENTRIES else TEMPERATURE
    lm = small(whole[tied])
    model = distilled(lm, target, source, loss, temperature=temperature)
    rows = list(IDS) if source in ENTRIES else None
    given = batch if source == "live" else with_cache(batch, source, target, rows=rows)
    found = model.loss(model(given), given)
    expected = plain(whole[tied], target, batch, source, loss, temperature=temperature)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert_same_gradients(gradients(found, lm), gradients(expected, whole[tied]), tied=tied)


@pytest.mark.parametrize("source", ["live", "hidden", "top_k", "samples"])
@pytest.mark.parametrize("loss", ["forward_kl", "cross_entropy"])
def test_with_every_id_there_is_a_small_head_changes_nothing(whole, make_checkpoint, batch, source, loss):
    """A target of 260 ids: those of the draft behind them are said by nobody, whichever way."""
    target = ResponseLogits(
        load_model(make_checkpoint(seed=1, vocab_size=260), dtype="float32", device="cpu")
    ).requires_grad_(requires_grad=False)
    found = {}
    for ids in (None, range(260), range(262)):
        lm = copy.deepcopy(whole[False]) if ids is None else small(whole[False], ids)
        model = distilled(lm, target, source, loss, held_out=HeldOut(temperature=0.7, top_p=0.9))
        given = batch if source == "live" else with_cache(batch, source, target)
        value = model.loss(model(given), given)
        evaluated = model.eval_forward(batch) if source == "live" else None
        found[ids] = (value, gradients(value, lm), evaluated)
        assert model.rows == 260
    expected, *others = found.values()
    for value, gradient, evaluated in others:
        assert torch.equal(value, expected[0])
        for name, each in gradient.items():
            torch.testing.assert_close(each[:260], expected[1][name][:260], rtol=1e-6, atol=1e-9)
            assert torch.count_nonzero(each[260:]) == 0
        for one, another in zip(evaluated or [], expected[2] or [], strict=True):
            for name in ("alpha", "match", "accept"):
                assert getattr(one, name).tolist() == getattr(another, name).tolist()


@pytest.mark.parametrize("loss", COMPARED)
def test_a_student_equal_to_its_teacher_has_nothing_to_learn(target, batch, loss):
    lm = small(target.lm).requires_grad_()
    model = distilled(lm, target, "live", loss, temperature=TEMPERATURE)
    value = model.loss(model(batch), batch)
    assert value.item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("loss", ["forward_kl", "cross_entropy"])
@pytest.mark.parametrize("chunk", [2, 100])
def test_nothing_of_a_position_that_cannot_be_said_reaches_the_student(monkeypatch, whole, target, batch, loss, chunk):
    monkeypatch.setattr("distill.chunked_loss.chunk_size", lambda _: chunk)
    lm, keep = small(whole[False]), batch["keep"] & ~said(batch)
    model = distilled(lm, target, "live", loss)
    unsaid = {**batch, "keep": keep}
    value = model.loss(model(unsaid), unsaid)
    value.backward()
    assert value.item() == 0
    assert all(each.grad is None or torch.count_nonzero(each.grad) == 0 for each in lm.parameters())
    other_text = {**batch, "input_ids": batch["input_ids"].clone()}
    other_text["input_ids"][1] = 5  # of the response of which nothing can be said
    assert torch.equal(model(other_text), model(batch))


def test_no_logit_is_made_where_the_response_cannot_be_said(whole, target, batch):
    lm, seen = small(whole[True]), []
    model = distilled(lm, target, "live", "forward_kl")
    rule = model.objective

    def watched(student_AK, teacher_AK, ids_A):
        seen.append((tuple(student_AK.shape), tuple(teacher_AK.shape)))
        return rule(student_AK, teacher_AK, ids_A)

    watched.needs_teacher = True
    model.objective = watched
    model(batch)
    assert seen == [((int(said(batch).sum()), len(IDS)),) * 2]


def test_the_teachers_rows_are_copied_once(whole, target, batch):
    for source in ("live", "hidden"):
        model = distilled(small(whole[True]), target, source, "forward_kl")
        given = batch if source == "live" else with_cache(batch, source, target)
        heads = [model.rows_of(model.teacher, learned(given, model.ids_K), model.ids_K).head for _ in range(2)]
        assert heads[0].weight_VH.data_ptr() == heads[1].weight_VH.data_ptr()
        assert heads[0].weight_VH.shape == (len(IDS), 64)
        assert not heads[0].weight_VH.requires_grad


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("source", ["live", "hidden", "top_k"])
def test_no_split_of_a_batch_changes_what_is_learned(whole, target, batch, source, size):
    rows = list(IDS) if source == "top_k" else None
    given = batch if source == "live" else with_cache(batch, source, target, rows=rows)
    model = distilled(small(whole[True]), target, source, "forward_kl")
    pieces = [{name: each[start : start + size] for name, each in given.items()} for start in range(0, 3, size)]
    shares = [piece["keep"].sum() / batch["keep"].sum() for piece in pieces]  # as the trainer weighs micro-batches
    parts = sum(model.loss(model(piece), piece) * share for piece, share in zip(pieces, shares, strict=True))
    torch.testing.assert_close(parts, model.loss(model(given), given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [2, 100])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_held_out_metrics_are_exact_over_the_whole_vocabulary(monkeypatch, whole, target, batch, temperature, chunk):
    monkeypatch.setattr("distill.chunked_loss.chunk_size", lambda _: chunk)
    held_out = HeldOut(temperature=temperature, top_p=0.9)
    model = distilled(small(whole[True]), target, "live", "forward_kl", held_out=held_out)
    responses = model.eval_forward(batch)
    q = masked(ResponseLogits(whole[True])(batch["input_ids"], batch["keep"], logits_of)).double()
    p = target(batch["input_ids"], batch["keep"], logits_of).double()
    ids_A, is_said_A = batch["next_ids"][batch["keep"]], said(batch)[batch["keep"]]
    alpha = torch.minimum(p.softmax(-1)[:, list(IDS)], q.softmax(-1)[:, list(IDS)]).sum(-1)
    match = (p.argmax(-1) == q.argmax(-1)) & torch.isin(p.argmax(-1), torch.tensor(IDS))
    for name, expected in (("alpha", alpha), ("match", match.double())):
        found = torch.cat([torch.from_numpy(getattr(response, name)) for response in responses])
        torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-4, atol=1e-6)
    accept = torch.cat([torch.from_numpy(response.accept) for response in responses])
    assert torch.count_nonzero(accept[~is_said_A]) == 0
    whole_q = quantities_of_rows(q, p, ids_A, temperature=temperature, top_p=0.9)[:, 2]
    torch.testing.assert_close(accept.double(), whole_q.double().detach(), rtol=1e-4, atol=1e-6)


def test_chunks_are_of_the_widest_rows_there_are(monkeypatch, whole, target, batch):
    """K columns while it learns; in an evaluation the teacher's and the spread ones are V."""
    seen, model = [], distilled(small(whole[True]), target, "live", "forward_kl")
    monkeypatch.setattr("distill.chunked_loss.chunk_size", lambda entries: seen.append(entries) or 100)
    model(batch)
    model.eval_forward(batch)
    assert seen == [len(IDS), VOCAB]


def test_losses_of_text_are_of_the_tokens_that_can_be_said(whole, target, batch):
    """What a mixture follows: of each sequence those of the student, and those of the teacher given the same ids."""
    model, keep = distilled(small(whole[True]), target, "live", "forward_kl"), said(batch)
    for losses_of, lm in ((student_losses, ResponseLogits(whole[True])), (teacher_losses, target)):
        logp_AV = masked(lm(batch["input_ids"], keep, logits_of)).log_softmax(-1)
        expected = -logp_AV.gather(-1, batch["next_ids"][keep][:, None])[:, 0]
        found = losses_of(model, batch)
        assert [len(each) for each in found] == keep.sum(1).tolist()
        torch.testing.assert_close(torch.cat(list(found)), expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("source", ["live", "hidden", "top_k"])
def test_flops_count_the_rows_that_are_used(whole, target, batch, source):
    rows = list(IDS) if source == "top_k" else None
    given = batch if source == "live" else with_cache(batch, source, target, rows=rows)
    model = distilled(small(whole[True]), target, source, "forward_kl")
    kept = said(batch).sum(1).tolist()
    responses = list(zip(LENGTHS, kept, strict=True))
    head = 2 * len(IDS) * 64 * sum(kept)
    of_layers = forward_flops(model.teacher.shape, [(n, 0) for n in LENGTHS]) if source == "live" else 0
    teacher = 0 if source == "top_k" else of_layers + head
    assert model.shape.head_rows == len(IDS)
    assert model.flops_per_batch(given) == training_flops(model.shape, responses, teacher=teacher)

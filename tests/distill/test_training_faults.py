"""Faults found in other tools for distilling drafts, each with a test; docs/library_bugs.md lists all."""

import pytest
import torch

from distill.chunked_loss import ResponseLogits
from distill.data.batches import ResponseDataset, collate
from distill.losses import build_objective, forward_kl
from distill.model import DistillModel
from distill.teacher import load_teacher
from eval.decoding.sampling import Limits
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.models import load_model
from eval.responses import Trace

PROMPT, RESPONSE = (5, 9, 70), (80, 11, 7, 200, 33, 2)


def build(draft, target):
    student = ResponseLogits(load_model(draft, dtype="float32", device="cpu"))
    teacher = load_teacher(target, dtype="float32", device="cpu")
    objective = build_objective("forward_kl", temperature=1.0)
    return DistillModel(student, teacher, objective=objective, cpu_bfloat16=False)


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


def test_responses_without_a_chat_template_are_trained_on(tiny_draft, tiny_target):
    """Recorded as token ids, with no conversation at all: every response token is learned, no prompt token."""
    model, batch = build(tiny_draft, tiny_target), answered()
    assert batch["next_ids"][batch["keep"]].tolist() == list(RESPONSE)
    assert model.loss(model(batch), batch).item() > 0

"""Layers that are computed again learn what layers learn that keep everything, to the last bit, and keep less."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from architectures.families import FAMILIES
from architectures.hub import read_config
from architectures.pruning.masks import Masks
from architectures.shapes import Shape
from distill.chunked_loss import ResponseLogits, logits_of
from distill.estimate import training_memory
from distill.learned_masks import MaskModel
from distill.teacher import Teacher
from distill.train import train
from distill.trainer import recompute_layers
from eval.models import load_model
from tests.distill.after_training import assert_same_end
from tests.distill.data.test_packing import SETTINGS, as_one_row, batch_of
from tests.distill.test_estimate import SHAPES, wide
from tests.distill.two_processes import train_by
from tests.families import ENCODER_DECODER


def passes(lm) -> list[int]:
    """How often the first layer has been computed, added to as it is."""
    count = [0]
    layer = next(module for module in lm.modules() if isinstance(module, GradientCheckpointingLayer))
    inner = next(
        module for module in layer.modules() if isinstance(module, torch.nn.Linear) or "Conv1D" in str(type(module))
    )
    forward = inner.forward

    def counted(*given):
        count[0] += 1
        return forward(*given)

    inner.forward = counted
    return count


def gradients(lm, *, again: bool, packing: bool) -> dict[str, torch.Tensor]:
    """Of a made-up loss at the responses' positions of a ragged batch, in training mode: dropout draws."""
    model = ResponseLogits(lm, packing=packing)
    if packing:
        as_one_row(model)
    if again:
        recompute_layers(lm)
    count, batch = passes(lm), batch_of()
    torch.manual_seed(3)
    lm.train()
    prompt_len = batch["keep"].float().argmax(dim=1, keepdim=True) + 1
    logits = model(batch["input_ids"], batch["keep"], logits_of, prompt_len_B1=prompt_len)
    logits.float().log_softmax(-1)[:, 7].sum().backward()
    assert count[0] == 1 + again
    return {name: parameter.grad for name, parameter in lm.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_the_same_to_the_last_bit(make_checkpoint, make_translator, family, packing):
    if family in ENCODER_DECODER:
        if packing:
            pytest.skip("packing is refused behind an encoder")
        folder = make_translator()
    else:
        folder = make_checkpoint(model_type=family, **SETTINGS.get(family, {}))
    kept, again = (
        gradients(load_model(folder, dtype="float32", device="cpu"), again=again, packing=packing)
        for again in (False, True)
    )
    assert kept.keys() == again.keys()
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def test_frozen_embeddings_and_bfloat16_are_as_they_were(make_checkpoint):
    folder = make_checkpoint(tie_word_embeddings=False)
    found = []
    for again in (False, True):
        lm = load_model(folder, dtype="float32", device="cpu")
        lm.get_input_embeddings().weight.requires_grad_(False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(gradients(lm, again=again, packing=False))
    assert not any("embed_tokens" in name for name in found[1])
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_gates_of_masks_act_on_what_is_computed_again(tiny_target):
    source = Shape.from_config(read_config(tiny_target))
    small = replace(source, layers=2, intermediate=64, heads=2, kv_heads=1, hidden=32)
    found = []
    for again in (False, True):
        student, teacher = (load_model(tiny_target, dtype="float32", device="cpu") for _ in range(2))
        if again:
            recompute_layers(student)
        teacher = Teacher(ResponseLogits(teacher))
        told = {"warmup_batches": 10, "cpu_bfloat16": False}
        model = MaskModel(ResponseLogits(student), Masks(source, small, seed=5), teacher, **told).train()
        with torch.no_grad():
            for values in model.masks.log_alpha.values():
                values.fill_(0.3)
        count, batch = passes(student), {"input_ids": torch.arange(3, 43).reshape(2, 20)}
        model.loss(model(batch), batch)["total"].backward()
        assert count[0] == 1 + again
        assert not any(module._forward_hooks for module in student.modules())
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_evaluations_compute_nothing_twice(tiny_target):
    lm = load_model(tiny_target, dtype="float32", device="cpu").eval()
    recompute_layers(lm)
    count = passes(lm)
    lm(torch.arange(3, 13)[None]).logits.sum().backward()
    assert count == [1]


def peak(step: Callable[[], object]) -> int:
    """Bytes above what was there before, by torch's own count of what it allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = recorded.profiler.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


SIZES = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 4}


@pytest.mark.parametrize("again", [False, True])
def test_the_estimate_of_activations_as_measured(again):
    """A forward pass of 12 layers on 4 x 256 tokens, and where layers are computed again the backward pass of one."""
    config = AutoConfig.for_model("llama", **SIZES, num_hidden_layers=12, vocab_size=64)
    lm = AutoModelForCausalLM.from_config(config).train()
    if again:
        recompute_layers(lm)
    ids = torch.zeros(4, 256, dtype=torch.int64)

    def step() -> None:
        hidden = lm.base_model(input_ids=ids, use_cache=False).last_hidden_state
        hidden.sum().backward()

    step()  # gradients are there
    data = {"max_seq_len": 256, "max_new_tokens": 128}
    recipe = wide(data, precision="fp32", activation_checkpointing=again)
    shapes = replace(SHAPES, draft=Shape.from_config(config.to_dict()))
    assert peak(step) == pytest.approx(training_memory(recipe, shapes)["activations"], rel=0.25)


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp2"])
def test_a_training_ends_in_the_same_bits_and_in_shards_too(pair, make_run, parallelism):
    settings = {"max_duration": "2ba", "device_train_microbatch_size": 1, "parallelism": parallelism}
    plain, again = make_run("plain", **settings), make_run("again", activation_checkpointing=True, **settings)
    for recipe in (plain, again):
        (partial(train_by, pair) if parallelism == "fsdp2" else train)(recipe)
    assert_same_end(plain, again)

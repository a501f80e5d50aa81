"""A target whose layers are on the disk says what the same target says in memory, of every family."""

import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch

from architectures.checkpoint import Weights, open_weights
from architectures.families import FAMILIES
from architectures.settings import Holding
from eval.decoding.sampling import Limits
from eval.decoding.speculative import plain_decode
from eval.large_targets import Pass, cut_into_blocks, largest_part, layers_of, load_target, run_passes
from eval.models import load_model
from eval.replay import response_logits
from tests.architectures.cuts import edit_weights
from tests.eval.targets.conftest import LAYERS
from tests.rejections import rejects

TEXTS = [
    ([5, 9, 17, 40], [7, 8, 9]),
    ([6, 11], [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]),
    ([200, 100, 50, 25, 12, 6, 3], [30, 31]),
]
LIMITS = Limits(6, frozenset())


def passes_of(model):
    return [Pass(partial(response_logits, model, *text), 1, sum(map(len, text))) for text in TEXTS]


def require_same_logits(model, whole):
    for given, text in zip(run_passes(model, passes_of(model)), TEXTS, strict=True):
        assert torch.equal(given, response_logits(whole, *text))


def in_layers(folder, dtype="float32", holding=LAYERS):
    return load_target(folder, dtype=dtype, holding=holding, device="cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_read_layer_by_layer_are_read_as_ever(held_family, family):
    folder = held_family(family)
    whole, model = load_model(folder, dtype="float32", device="cpu"), in_layers(folder)
    require_same_logits(model, whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_reads_every_layer_at_every_step_and_says_the_same(held_family, family):
    folder, prompts = held_family(family), [prompt for prompt, _ in TEXTS]
    whole, model = load_model(folder, dtype="float32", device="cpu"), in_layers(folder)
    ours, theirs = (plain_decode(each, prompts, limits=LIMITS) for each in (model, whole))
    assert [text.token_ids for text in ours] == [text.token_ids for text in theirs]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_read_into_the_number_type_asked_for(held_family, dtype):
    folder = held_family("qwen2")
    whole, model = load_model(folder, dtype=dtype, device="cpu"), in_layers(folder, dtype)
    assert model.dtype == whole.dtype
    require_same_logits(model, whole)


@pytest.mark.parametrize("settings", [{"tied": False}, {"gated": True}, {"tied": False, "gated": True}])
def test_an_encoder_and_a_decoder_with_a_head_of_its_own(make_translator, settings):
    folder = make_translator(**settings)
    whole, model = load_model(folder, dtype="float32", device="cpu"), in_layers(folder)
    require_same_logits(model, whole)


def test_float16_of_a_family_that_keeps_some_weights_in_float32_is_refused(held_family):
    with rejects("float16", "float32", "bfloat16", "wo"):
        in_layers(held_family("t5"), "float16")


def read_counts(monkeypatch):
    """How often each tensor is read from now on."""
    counts, read = Counter(), Weights.read
    monkeypatch.setattr(Weights, "read", lambda weights, name: counts.update([name]) or read(weights, name))
    return counts


def test_every_weight_is_read_once_for_all_texts_and_is_gone_afterwards(target_folder, monkeypatch):
    model, counts = in_layers(target_folder), read_counts(monkeypatch)
    list(run_passes(model, passes_of(model)))
    in_layer = {name for name, _ in model.named_parameters() if ".layers." in name}
    assert counts == Counter({*in_layer, "model.embed_tokens.weight"})  # the last as the head, which it is
    assert all(model.get_parameter(name).isnan().all() for name in in_layer)
    assert model.lm_head.weight.untyped_storage().nbytes() == 4


def test_texts_that_do_not_fit_together_are_read_in_blocks(target_folder, monkeypatch):
    model, counts = in_layers(target_folder), read_counts(monkeypatch)
    layers = layers_of(model)
    layers.cap = (layers.memory.least_bytes(1, 14), "a test")
    blocks = cut_into_blocks(model, layers, passes_of(model))
    assert [len(block) for block in blocks] == [1, 1, 1]
    list(run_passes(model, passes_of(model)))
    assert set(counts.values()) == {3}
    layers.cap = (layers.memory.least_bytes(1, 14) + layers.memory.held_bytes(1, 16), "a test")
    assert sum(map(len, cut_into_blocks(model, layers, passes_of(model)))) == 3
    assert len(cut_into_blocks(model, layers, passes_of(model))) == 1


def test_a_text_that_is_too_long_for_the_cap_is_refused_before_any_is_read(target_folder, monkeypatch):
    model, counts = in_layers(target_folder), read_counts(monkeypatch)
    layers = layers_of(model)
    layers.cap = (layers.memory.least_bytes(1, 10), "target.device_memory_gib is 0.1")
    with rejects("target.device_memory_gib", 0.1):
        list(run_passes(model, passes_of(model)))
    assert not counts


def test_a_cap_that_holds_no_layer_is_refused_with_file_figures_and_remedy(target_folder):
    with rejects(target_folder, "target.device_memory_gib", 0.0001):
        in_layers(target_folder, holding=Holding("layers", 0.0001))


def test_a_weight_that_is_no_number_is_named_when_it_is_read(target_folder, tmp_path):
    folder = Path(shutil.copytree(target_folder, tmp_path / "copy"))
    edit_weights(folder, lambda tensors: tensors["model.layers.2.mlp.up_proj.weight"][3, 4].fill_(torch.inf))
    model = in_layers(folder)
    with rejects("model.safetensors", "model.layers.2.mlp.up_proj.weight", "NaN"):
        list(run_passes(model, passes_of(model)))
    assert not layers_of(model).absent  # nothing stays loaded behind an error


@pytest.mark.parametrize("holding", [LAYERS, Holding("spread", device_memory_gib=0.00045)], ids=["layers", "spread"])
def test_logits_on_a_device_are_those_of_the_whole_target(target_folder, device, holding):
    """float32, rtol 1e-4: layers read from the disk one by one, or as many on the device as fit."""
    whole = load_model(target_folder, dtype="float32", device=device)
    model = load_target(target_folder, dtype="float32", holding=holding, device=None if device == "cuda" else device)
    for given, text in zip(run_passes(model, passes_of(model)), TEXTS, strict=True):
        torch.testing.assert_close(given.cpu(), response_logits(whole, *text).cpu(), rtol=1e-4, atol=1e-4)


# A part of the target is on the disk, by accelerate


def spread(folder, **memory):
    return load_target(folder, dtype="float32", holding=Holding("spread", **memory))


IN_PARTS = {
    "llama": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["full_attention"] * 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
}


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("model_type", IN_PARTS)
def test_a_target_half_on_the_disk_says_what_it_says_in_memory(make_checkpoint, model_type):
    folder = make_checkpoint(seed=3, model_type=model_type, **IN_PARTS[model_type])
    whole, (_, largest) = load_model(folder, dtype="float32"), largest_part(open_weights(folder), "float32")
    model = spread(folder, device_memory_gib=2.5 * largest / 2**30)
    places = list(vars(model)["hf_device_map"].values())
    assert places.count("disk") >= 1
    assert places.count("cpu") >= 2
    assert torch.equal(response_logits(model, *TEXTS[0]), response_logits(whole, *TEXTS[0]))
    [ours], [theirs] = (plain_decode(each, [TEXTS[0][0]], limits=Limits(5, frozenset())) for each in (model, whole))
    assert ours.token_ids == theirs.token_ids


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("count", [0.01, 0.9])
def test_the_largest_layer_must_fit(target_folder, count):
    name, largest = largest_part(open_weights(target_folder), "float32")
    layer = load_model(target_folder, dtype="float32").model.layers[0]
    assert name in {f"model.layers.{number}" for number in range(4)}
    assert largest == 4 * sum(each.numel() for each in layer.parameters())
    with rejects("target.device_memory_gib", name):
        spread(target_folder, device_memory_gib=count * largest / 2**30)

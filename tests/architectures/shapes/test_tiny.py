"""Tiny targets keep the proportions of the real ones, and transformers can open them."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from architectures.families import FAMILIES
from architectures.hub import KNOWN_CONFIGS, read_config
from architectures.requested_shape import ArchitectureConfig, draft_shape
from architectures.shapes import NAMED_SHAPES, Shape
from distill.debug import tiny_config, tiny_shapes

LLAMA = NAMED_SHAPES["llama-7b"].shape
QWEN = Shape.from_config(KNOWN_CONFIGS["Qwen/Qwen2.5-7B"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_of_every_family_opens_and_has_the_shape_foretold(family, family_checkpoint, tmp_path):
    config = read_config(family_checkpoint(family))
    source = Shape.from_config(config)
    shape, draft = tiny_shapes(source, [replace(source, layers=2)])
    small = tiny_config(config, shape)
    (tmp_path / "config.json").write_text(json.dumps(small), encoding="utf-8")
    opens = AutoModelForCausalLM if source.encoder_layers == 0 else AutoModelForSeq2SeqLM
    model = opens.from_config(AutoConfig.from_pretrained(tmp_path))
    assert Shape.from_config(small) == shape
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters()
    said = {"decoder_input_ids": torch.arange(12)[None]} if source.encoder_layers else {}
    assert model(torch.arange(12)[None], **said).logits.shape == (1, 12, 264)
    assert draft == replace(shape, layers=2)


@pytest.mark.parametrize(("name", "layers"), [("wide-1.3b", 2), ("deep-1.3b", 3), ("wide-290m", 1)])
def test_a_draft_of_llama_keeps_its_proportions_to_its_target(name, layers):
    draft = draft_shape(LLAMA, ArchitectureConfig(shape=name))
    target, small = tiny_shapes(LLAMA, [draft])
    assert (target.layers, small.layers) == (4, layers)
    for size in ("hidden", "heads", "kv_heads"):
        assert getattr(small, size) * getattr(LLAMA, size) == pytest.approx(
            getattr(target, size) * getattr(draft, size), rel=0.07
        ), size
    assert small.intermediate / target.intermediate == pytest.approx(draft.intermediate / LLAMA.intermediate, rel=0.01)
    assert target.hidden / (target.heads * target.head_dim) == pytest.approx(1, abs=0.07)
    assert small.parameters() < target.parameters() < 2e6


def test_grouped_queries_keep_their_groups():
    (target,) = tiny_shapes(QWEN)
    assert (target.heads, target.kv_heads, target.head_dim) == (7, 1, 16)
    assert (target.hidden, target.intermediate) == (112, 592)
    assert target.qkv_bias
    assert not target.tied


def test_every_size_is_divided_where_hidden_and_heads_part_ways():
    draft = draft_shape(LLAMA, ArchitectureConfig(shape="wide-796m-true"))  # 2560 wide with 32 heads of 128
    target, small = tiny_shapes(LLAMA, [draft])
    assert (target.hidden, small.hidden, small.heads, small.head_dim) == (32, 20, 2, 16)
    assert small.hidden % small.heads == 0


def test_rotary_factors_for_every_pair_are_left_out_and_others_stay():
    shape = tiny_shapes(LLAMA)[0]
    stays = {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "rope_theta": 5e5}
    config = {**KNOWN_CONFIGS["meta-llama/Llama-2-7b-hf"], "auto_map": {"AutoModel": "x"}, **stays}
    small = tiny_config(config, shape)
    assert {key: small[key] for key in stays} == stays
    assert "auto_map" not in small
    assert "rope_scaling" not in tiny_config({**config, "rope_scaling": {"short_factor": [1.0, 2.0]}}, shape)

"""Every family through prune, save, load, compare: what is kept is kept bit for bit, what is removed counts as zero."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from architectures.families import FAMILIES
from architectures.families.family import Family
from architectures.hub import read_config
from architectures.pruning.plan import PruningPlan, needed_scores, wrong_field
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from tests.architectures.cuts import (
    edit_weights,
    load,
    logits,
    plan_for,
    pruned,
    require_same_tensors,
    shape_of,
    write_config,
)
from tests.families import DECODER_ONLY, WIDE, WITH_EXPERTS, WITH_NEURONS
from tests.rejections import rejects

CLOSE = {"rtol": 1e-3, "atol": 2e-4}  # float32: the same sums over fewer terms, in another order, through four layers


@pytest.fixture(params=DECODER_ONLY)
def target(request, family_checkpoint) -> Path:
    return family_checkpoint(request.param)


@pytest.fixture(params=WIDE)
def wide_target(request, family_checkpoint) -> Path:
    return family_checkpoint(request.param)


def edit(folder: Path, change: Callable[[dict[str, Tensor], Family], None]) -> PreTrainedModel:
    """The target with some of its weights changed in memory."""
    model, family = load(folder), FAMILIES[read_config(folder)["model_type"]]
    with torch.no_grad():
        change(dict(model.named_parameters()), family)
    return model


@pytest.mark.parametrize("method", ["first_last", "evenly_spaced", "random"])
def test_keeping_everything_keeps_every_bit(target, tmp_path, method):
    draft = pruned(target, plan_for(target, layers=4, method=method), tmp_path / "draft")

    assert torch.equal(logits(draft), logits(load(target)))
    require_same_tensors(tmp_path / "draft", target)


@pytest.mark.parametrize(("num_layers", "method"), [(1, "first_last"), (2, "first_last"), (3, "evenly_spaced")])
def test_a_draft_computes_what_the_target_computes_without_the_other_layers(target, tmp_path, num_layers, method):
    plan = plan_for(target, layers=num_layers, method=method)
    draft = pruned(target, plan, tmp_path / "draft")

    model, family = load(target), FAMILIES[plan.source.family]
    holder, _, name = family.layer_prefix.removesuffix(".").rpartition(".")
    layers = getattr(model.get_submodule(holder), name)
    setattr(model.get_submodule(holder), name, torch.nn.ModuleList(layers[layer] for layer in plan.source_layers))
    setattr(model.config, family.keys["layers"], num_layers)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[layer] for layer in plan.source_layers]

    assert torch.equal(logits(draft), logits(model))


def test_layers_keep_their_rotary_positions_where_an_interval_says_which_have_some(family_copy, tmp_path):
    copy = family_copy("smollm3")
    write_config(copy, no_rope_layers=None, no_rope_layer_interval=2)
    plan = replace(plan_for(copy, layers=2), source_layers=(1, 2))
    draft = pruned(copy, plan, tmp_path / "draft")

    assert read_config(tmp_path / "draft")["no_rope_layers"] == [0, 1]
    assert [layer.self_attn.use_rope for layer in draft.model.layers] == [0, 1]
    assert [layer.self_attn.use_rope for layer in load(copy).model.layers] == [1, 0, 1, 0]


@pytest.mark.parametrize("family", WITH_NEURONS)
def test_a_removed_neuron_is_that_neuron_zeroed(family_checkpoint, family, tmp_path):
    wide_target = family_checkpoint(family)
    plan = plan_for(wide_target, intermediate=80)
    neurons = plan.neurons
    assert neurons is not None
    assert len(set(neurons)) == 4  # each layer keeps its own

    def zero(weights, family):
        for layer in range(4):
            gone = sorted(set(range(128)) - set(neurons[layer]))
            weights[f"{family.layer_module(layer, 'ffn_down')}.weight"][:, gone] = 0

    torch.testing.assert_close(
        logits(pruned(wide_target, plan, tmp_path / "draft")), logits(edit(wide_target, zero)), **CLOSE
    )


@pytest.mark.parametrize("norm_topk_prob", [True, False])
@pytest.mark.parametrize("count", [3, 2])
@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_a_removed_expert_is_one_that_no_router_chooses(family_copy, tmp_path, family, count, norm_topk_prob):
    """Its router logit is -inf before the softmax, so that those of a token that would use it move to others."""
    target = family_copy(family)
    write_config(target, norm_topk_prob=norm_topk_prob)
    plan = plan_for(target, experts=count, heads=2)
    assert plan.experts is not None
    assert len(set(plan.experts)) > 1  # each layer keeps its own
    draft = pruned(target, plan, tmp_path / "draft")
    assert read_config(tmp_path / "draft")["num_experts"] == count
    assert "num_local_experts" not in read_config(tmp_path / "draft")

    whole = pruned(target, replace(plan, draft=replace(plan.draft, experts=4), experts=None), tmp_path / "whole")
    before = logits(whole)
    for layer, kept in enumerate(plan.experts):
        gate = whole.get_submodule(FAMILIES[family].layer_module(layer, "router"))
        gate.register_forward_hook(choose_among(kept, 2, normalise=norm_topk_prob))
    torch.testing.assert_close(logits(draft), logits(whole), **CLOSE)
    assert (logits(draft) - before).abs().max() > 0.05


def choose_among(kept: tuple[int, ...], top_k: int, *, normalise: bool):
    def route(module, args, output):
        masked = torch.full_like(output[0], -torch.inf)
        masked[:, kept] = output[0][:, kept]
        weights, chosen = masked.softmax(dim=-1).topk(top_k, dim=-1)
        return masked, weights / weights.sum(dim=-1, keepdim=True) if normalise else weights, chosen

    return route


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (2, 1), (1, 1)])
def test_a_removed_head_is_that_head_zeroed(wide_target, tmp_path, heads, kv_heads):
    plan = plan_for(wide_target, heads=heads, kv_heads=kv_heads)
    kept, width = plan.heads, plan.source.head_dim
    assert kept is not None
    assert (plan.kv_heads is None) == (kv_heads == 2)

    def zero(weights, family):
        for layer in range(4):
            output = weights[f"{family.layer_module(layer, 'attention_output')}.weight"]
            for head in set(range(4)) - set(kept[layer]):
                output[:, head * width : (head + 1) * width] = 0

    expected = edit(wide_target, zero)
    normalise_among_kept_heads(expected, plan)
    torch.testing.assert_close(logits(pruned(wide_target, plan, tmp_path / "draft")), logits(expected), **CLOSE)


def normalise_among_kept_heads(model: PreTrainedModel, plan: PruningPlan) -> None:
    """Where queries and keys of all heads are normalised together, those that are kept are, among themselves."""
    family = FAMILIES[plan.source.family]
    if not family.norms_over_heads:
        return
    for role, kept in (("query_norm", plan.heads), ("key_norm", plan.kv_heads)):
        for layer in range(plan.source.layers if kept is not None else 0):
            module = model.get_submodule(family.layer_module(layer, role))
            module.register_forward_hook(normalised_by(kept_columns(kept[layer], plan.source.head_dim)))


def kept_columns(heads: tuple[int, ...], width: int) -> list[int]:
    return [head * width + column for head in heads for column in range(width)]


def normalised_by(columns: list[int]):
    def norm(module, inputs, _):
        mean_square = inputs[0][..., columns].square().mean(dim=-1, keepdim=True)
        return module.weight * inputs[0] * torch.rsqrt(mean_square + module.variance_epsilon)

    return norm


def test_a_removed_channel_is_that_channel_zeroed(wide_target, tmp_path):
    plan = plan_for(wide_target, hidden=48)
    gone = sorted(set(range(64)) - set(plan.channels or ()))
    assert len(gone) == 16

    def zero(weights, family):
        weights[family.weight("embedding")][:, gone] = 0
        for layer in range(4):
            for role in ("attention_output", "ffn_down"):
                stacked = family.layer[role].stacked
                if stacked:
                    weights[f"{family.layer_prefix}{layer}.{stacked}"][:, gone] = 0
                    continue
                weights[f"{family.layer_module(layer, role)}.weight"][gone] = 0
                bias = weights.get(f"{family.layer_module(layer, role)}.bias")
                if bias is not None:
                    bias[gone] = 0
        if "lm_head.weight" in weights:
            weights["lm_head.weight"][:, gone] = 0

    torch.testing.assert_close(
        logits(pruned(wide_target, plan, tmp_path / "draft")), logits(edit(wide_target, zero)), **CLOSE
    )


def test_a_merged_layer_is_the_first_plus_the_differences_of_the_others(target, tmp_path):
    plan = replace(plan_for(target, layers=2), source_layers=(0, 1), merged_layers=((), (2, 3)), method="merge")
    draft = pruned(target, plan, tmp_path / "draft")

    def merge(weights, family):
        for name in weights:
            if name.startswith(f"{family.layer_prefix}1."):
                rest = name.removeprefix(f"{family.layer_prefix}1.")
                one, two, three = (weights[f"{family.layer_prefix}{layer}.{rest}"].clone() for layer in (1, 2, 3))
                weights[name][:] = one + (two - one) + (three - one)

    merged = {**dict(edit(target, merge).named_parameters())}
    found = dict(draft.named_parameters())
    for name in found:
        torch.testing.assert_close(found[name], merged[name])


@pytest.mark.parametrize("family", ["opt", "bloom", "gpt2"])
def test_names_without_their_base_prefix_are_read(family_checkpoint, family_copy, tmp_path, family):
    copy, prefix = family_copy(family), FAMILIES[family].base_prefix
    tensors = load_file(copy / "model.safetensors")
    short_names = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    short_names["lm_head.weight"] = tensors[FAMILIES[family].weight("embedding")].clone()  # its name has no prefix
    save_file(short_names, copy / "model.safetensors")
    plan = plan_for(copy, layers=2)

    prune_checkpoint(copy, plan, tmp_path / "short")
    prune_checkpoint(family_checkpoint(family), plan, tmp_path / "full")

    require_same_tensors(tmp_path / "short", tmp_path / "full")


# Encoder-decoder models: blocks of both stacks go, and nothing else changes

KINDS = [(tied, gated) for tied in (True, False) for gated in (True, False)]
READ, SAID = torch.arange(3, 35)[None], torch.tensor([[0, 7, 9, 11, 9, 200]])


@pytest.fixture(scope="module", params=KINDS, ids=str)
def translator(request, make_translator) -> Path:
    tied, gated = request.param
    return make_translator(tied=tied, gated=gated)


def decoder_logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        return model.eval()(input_ids=READ, decoder_input_ids=SAID, use_cache=False).logits


def cut_by_hand(folder: Path, plan: PruningPlan) -> PreTrainedModel:
    """The target without the other blocks; the first ones left get the tables that the first ones had."""
    model = load(folder)
    for stack, kept in ((model.decoder, plan.source_layers), (model.encoder, plan.encoder_layers)):
        table = stack.block[0].layer[0].SelfAttention.relative_attention_bias
        stack.block = torch.nn.ModuleList(stack.block[block] for block in kept)
        attention = stack.block[0].layer[0].SelfAttention
        attention.relative_attention_bias, attention.has_relative_attention_bias = table, True
    return model


def test_keeping_every_block_keeps_every_bit(translator, tmp_path):
    draft = pruned(translator, plan_for(translator, layers=4), tmp_path / "draft")

    assert torch.equal(decoder_logits(draft), decoder_logits(load(translator)))
    require_same_tensors(tmp_path / "draft", translator)


@pytest.mark.parametrize(
    ("kept", "encoder"), [((0,), (0, 1, 2)), ((0, 3), (0, 2)), ((2, 3), (1,)), ((1, 2, 3), (2,)), ((3,), (0, 1, 2))]
)
def test_a_draft_computes_what_the_target_computes_without_the_other_blocks(translator, tmp_path, kept, encoder):
    plan = plan_for(translator, layers=len(kept), encoder_layers=len(encoder))
    plan = replace(plan, source_layers=kept, encoder_layers=encoder)
    draft = pruned(translator, plan, tmp_path / "draft")

    assert torch.equal(decoder_logits(draft), decoder_logits(cut_by_hand(translator, plan)))


def test_a_head_of_its_own_stays_one_and_a_tied_one_is_not_stored_twice(make_translator, tmp_path):
    for tied in (True, False):
        folder = make_translator(tied=tied)
        draft = pruned(folder, plan_for(folder, layers=1), tmp_path / str(tied))
        assert (draft.lm_head.weight is draft.shared.weight) == tied
        assert draft.config.scale_decoder_outputs == tied
        assert ("lm_head.weight" in load_file(tmp_path / str(tied) / "model.safetensors")) == (not tied)


@pytest.mark.parametrize("name", ["lm_head.weight", "encoder.embed_tokens.weight"])
def test_a_stored_copy_of_the_embedding_must_be_one(make_translator, tmp_path, name):
    folder = make_translator()
    edit_weights(folder, lambda tensors: tensors.update({name: tensors["shared.weight"].clone()}))
    pruned(folder, plan_for(folder, layers=1), tmp_path / "draft")

    edit_weights(folder, lambda tensors: tensors[name].add_(1))
    with rejects(name, "shared.weight"):
        prune_checkpoint(folder, plan_for(folder, layers=1), tmp_path / "other")


def test_blocks_of_the_encoder_are_evenly_spaced(translator):
    wanted = {"layers": 2, "encoder_layers": 2}
    assert plan_for(translator, **wanted).encoder_layers == (0, 2)
    assert needed_scores(shape_of(translator), ArchitectureConfig(method="first_last", **wanted)) == set()


def test_a_plan_from_a_file_is_held_to_the_encoder_that_is_there(translator):
    plan = plan_for(translator, layers=1, encoder_layers=2)
    assert PruningPlan.from_json(plan.to_json()) == plan
    assert wrong_field(plan) is None
    assert wrong_field(replace(plan, encoder_layers=(0, 3))) == "encoder_layers"
    assert wrong_field(replace(plan, encoder_layers=())) == "encoder_layers"


def test_a_target_without_an_encoder_has_no_blocks_of_one_to_keep(tiny_target):
    with rejects("architecture.encoder_layers=1", "llama"):
        plan_for(tiny_target, layers=1, encoder_layers=1)


def test_transformers_drafts_with_it(make_translator, tmp_path):
    """With an encoder as deep as the decoder: transformers' own cache has as many layers as the encoder."""
    folder = make_translator(tied=False, num_layers=4)
    draft = pruned(folder, plan_for(folder, layers=2, encoder_layers=2), tmp_path / "draft")
    target, how = load(folder), {"max_new_tokens": 9, "do_sample": False}
    with torch.inference_mode():
        assert torch.equal(target.generate(READ, assistant_model=draft, **how), target.generate(READ, **how))

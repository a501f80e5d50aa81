"""Scores of parts: each equals its formula computed the plain way, in float64, from what the model shows of itself."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForCausalLM

from architectures.families import FAMILIES
from architectures.pruning.importance import activation_scores, removal_order
from architectures.vocabulary_head import read_text
from eval.models import load_model
from tests.families import DECODER_ONLY, WITH_EXPERTS, WITH_NEURONS
from tests.rejections import rejects

METHODS = ("activation", "flap", "magnitude")
RTOL = 1e-9  # of sums in float64 whose order alone differs
S, T = 3, 20
IDS_ST = torch.randint(3, 260, (S, T), generator=torch.Generator().manual_seed(7))


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def part(model, role, layer=0):
    return model.get_submodule(FAMILIES[model.config.model_type].layer_module(layer, role))


@pytest.fixture(scope="module", params=DECODER_ONLY)
def any_model(request, family_checkpoint):
    return load(family_checkpoint(request.param))


@pytest.fixture(scope="module", params=WITH_NEURONS)
def watched(request, family_checkpoint):
    """A model, its scores, and the inputs and outputs of every module."""
    model = load(family_checkpoint(request.param))
    inputs, outputs, handles = {}, {}, []
    for name, module in model.named_modules():

        def keep(module, args, output, name=name):
            if args and isinstance(args[0], torch.Tensor) and isinstance(output, torch.Tensor):
                inputs[name], outputs[name] = args[0].double(), output.double()

        handles.append(module.register_forward_hook(keep))
    with torch.no_grad():
        model(IDS_ST)
    for handle in handles:
        handle.remove()
    scores = activation_scores(model, IDS_ST)
    return SimpleNamespace(model=model, config=model.config, inputs=inputs, outputs=outputs, scores=scores)


def stream(model):
    """x_JSTH: the input of every layer, and what the final norm reads, taken as the last layer's output."""
    family = FAMILIES[model.config.model_type]
    last = model.get_submodule(f"{family.layer_prefix}{model.config.num_hidden_layers - 1}")
    behind = []
    handle = last.register_forward_hook(
        lambda _, args, out: behind.append(out if isinstance(out, torch.Tensor) else out[0])
    )
    with torch.no_grad():
        hidden = model(IDS_ST, output_hidden_states=True).hidden_states
    handle.remove()
    return torch.stack([*hidden[:-1], behind[0]]).double()


def test_stream_scores_of_every_family(any_model):
    x_JSTH = stream(any_model)
    scores = activation_scores(any_model, IDS_ST)

    cos_LST = torch.cosine_similarity(x_JSTH[:-1], x_JSTH[1:], dim=-1)
    np.testing.assert_allclose(scores["block_influence_L"], 1 - cos_LST.mean(dim=(1, 2)), rtol=1e-7)


def test_names_and_sizes(any_model):
    scores = activation_scores(any_model, IDS_ST)

    config, family = any_model.config, FAMILIES[any_model.config.model_type]
    layers, hidden = config.num_hidden_layers, config.hidden_size
    expected = {"block_influence_L": (layers,)}
    for method in METHODS if family.width else ():
        if "experts" not in family.keys:
            expected[f"{method}.neurons_LF"] = (layers, config.intermediate_size)
        elif method != "flap":
            expected[f"{method}.experts_LE"] = (layers, config.num_experts)
        expected[f"{method}.heads_LN"] = (layers, config.num_attention_heads)
        if method != "flap":
            expected[f"{method}.channels_H"] = (hidden,)
    assert {name: values.shape for name, values in scores.items()} == expected
    assert {values.dtype for values in scores.values()} == {np.dtype(np.float64)}
    assert all((values >= 0).all() for values in scores.values())


@pytest.mark.parametrize("batch_size", [2, 3, 8])
def test_batches_do_not_matter(any_model, batch_size):
    together = activation_scores(any_model, IDS_ST, batch_size=batch_size)

    alone = activation_scores(any_model, IDS_ST)
    for name, values in alone.items():  # the model's own float32 products differ with the batch
        np.testing.assert_allclose(together[name], values, rtol=2e-4, atol=1e-9, err_msg=name)


def test_dropout_is_off(family_checkpoint):
    model = load(family_checkpoint("gpt2"))
    expected = activation_scores(model, IDS_ST)

    found = activation_scores(model.train(), IDS_ST)

    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("layer", [0, 3])
def test_activation_of_neurons_and_heads(watched, layer):
    names = {
        role: FAMILIES[watched.config.model_type].layer_module(layer, role) for role in ("ffn_down", "attention_output")
    }
    x_STF, x_STQ = watched.inputs[names["ffn_down"]], watched.inputs[names["attention_output"]]
    x_STND = x_STQ.view(S, T, watched.config.num_attention_heads, -1)

    neurons = (x_STF.abs().sum(dim=1) / T).pow(2).sum(dim=0).sqrt()
    heads = (x_STND.pow(2).sum(dim=-1).sqrt().sum(dim=1) / T).pow(2).sum(dim=0).sqrt()

    np.testing.assert_allclose(watched.scores["activation.neurons_LF"][layer], neurons, rtol=1e-4)
    np.testing.assert_allclose(watched.scores["activation.heads_LN"][layer], heads, rtol=1e-4)


def test_activation_of_channels(watched):
    gemma = watched.config.model_type.startswith("gemma")
    bare = "attention_norm" not in FAMILIES[watched.config.model_type].layer
    readers = ("input_layernorm", "pre_feedforward_layernorm" if gemma else "post_attention_layernorm")
    read = {f"model.layers.{layer}.{norm}": watched.outputs for layer in range(4) for norm in readers}
    if bare:  # attention and feed-forward read the stream itself
        linears = ("self_attn.q_proj", "mlp.up_proj")
        read = {f"model.layers.{layer}.{linear}": watched.inputs for layer in range(4) for linear in linears}
    read["model.norm"] = watched.outputs

    channels = sum((seen[name].abs().sum(dim=1) / T).pow(2).sum(dim=0).sqrt() for name, seen in read.items())

    np.testing.assert_allclose(watched.scores["activation.channels_H"], channels, rtol=1e-4)


@pytest.mark.parametrize("layer", [0, 3])
def test_flap(watched, layer):
    for role, name in (("ffn_down", "flap.neurons_LF"), ("attention_output", "flap.heads_LN")):
        x_STX = watched.inputs[FAMILIES[watched.config.model_type].layer_module(layer, role)]
        weight = part(watched.model, role, layer).weight.detach().double()
        each_X = x_STX.flatten(0, 1).var(dim=0, correction=0) * weight.norm(dim=0) ** 2
        expected = each_X if role == "ffn_down" else each_X.view(watched.config.num_attention_heads, -1).sum(dim=-1)
        np.testing.assert_allclose(watched.scores[name][layer], expected, rtol=1e-4)


def rows_of(model, role, layer):
    """The weight of a role; out of a fused one for phi3 and glm4."""
    if role in FAMILIES[model.config.model_type].layer:
        return part(model, role, layer).weight.detach().double()
    fused = "qkv" if role in ("query", "key", "value") else "ffn_gate_up"
    sizes = {"qkv": (64, 32, 32), "ffn_gate_up": (128, 128)}[fused]
    place = ("query", "key", "value", "ffn_gate", "ffn_up").index(role) % 3
    return part(model, fused, layer).weight.detach().double().split(sizes)[place]


@pytest.mark.parametrize("layer", [0, 3])
def test_magnitude_of_neurons_and_heads(watched, layer):
    model, num_heads = watched.model, watched.config.num_attention_heads
    down, out = (part(model, role, layer).weight.detach().double() for role in ("ffn_down", "attention_output"))
    gate, up, query, key, value = (rows_of(model, r, layer) for r in ("ffn_gate", "ffn_up", "query", "key", "value"))
    width = out.shape[1] // num_heads

    for neuron in (0, 77):
        touched = torch.cat([gate[neuron], up[neuron], down[:, neuron]])
        assert watched.scores["magnitude.neurons_LF"][layer, neuron] == pytest.approx(touched.norm().item(), rel=RTOL)
    for head in range(num_heads):
        own = slice(head * width, (head + 1) * width)
        shared = slice(head // 2 * width, (head // 2 + 1) * width)  # two query heads for each key/value head
        touched = [query[own], key[shared], value[shared], out[:, own]]
        norm = torch.cat([weights.flatten() for weights in touched]).norm().item()
        assert watched.scores["magnitude.heads_LN"][layer, head] == pytest.approx(norm, rel=RTOL)


def test_magnitude_of_channels(watched):
    total_H = torch.zeros(64, dtype=torch.float64)
    for name, weight in watched.model.named_parameters():  # a tied head is not named a second time
        if weight.ndim == 2:
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            total_H += weight.detach().double().pow(2).sum(dim=1 if writes else 0)

    np.testing.assert_allclose(watched.scores["magnitude.channels_H"], total_H.sqrt(), rtol=RTOL)


@pytest.fixture(scope="module", params=WITH_EXPERTS)
def routed(request, family_checkpoint):
    """A model with experts, and its scores."""
    model = load(family_checkpoint(request.param))
    return SimpleNamespace(model=model, scores=activation_scores(model, IDS_ST))


def test_an_expert_is_worth_what_the_router_gives_it_where_it_is_chosen(routed):
    with torch.no_grad():
        logits = routed.model(IDS_ST, output_router_logits=True).router_logits
    for layer, logits_XE in enumerate(logits):
        worth = [0.0] * 4
        for p_E in logits_XE.double().softmax(dim=-1).tolist():
            for expert in sorted(range(4), key=lambda each: -p_E[each])[:2]:
                worth[expert] += p_E[expert]
        np.testing.assert_allclose(routed.scores["activation.experts_LE"][layer], worth, rtol=1e-4)


def test_magnitude_of_experts_and_of_the_channels_that_they_read_and_write(routed):
    weights = {name: each.detach().double() for name, each in routed.model.named_parameters()}
    total_H = weights["model.embed_tokens.weight"].pow(2).sum(dim=0)
    for layer in range(4):
        begin = f"model.layers.{layer}."
        stacked = [weights[f"{begin}mlp.experts.{name}_proj"] for name in ("gate_up", "down")]
        gate = weights[f"{begin}mlp.gate.weight"]
        for expert in range(4):
            touched = torch.cat([each[expert].flatten() for each in (*stacked, gate)])
            found = routed.scores["magnitude.experts_LE"][layer, expert]
            assert found == pytest.approx(touched.norm().item(), rel=RTOL)
        total_H += stacked[0].pow(2).sum(dim=(0, 1)) + stacked[1].pow(2).sum(dim=(0, 2)) + gate.pow(2).sum(dim=0)
        for name in ("q", "k", "v"):
            total_H += weights[f"{begin}self_attn.{name}_proj.weight"].pow(2).sum(dim=0)
        total_H += weights[f"{begin}self_attn.o_proj.weight"].pow(2).sum(dim=1)
    np.testing.assert_allclose(routed.scores["magnitude.channels_H"], total_H.sqrt(), rtol=RTOL)


def test_a_large_matrix_in_pieces(watched, monkeypatch):
    monkeypatch.setattr("architectures.pruning.importance.ROWS_AT_ONCE", 24)
    in_pieces = activation_scores(watched.model, IDS_ST)

    for name, values in watched.scores.items():
        np.testing.assert_allclose(in_pieces[name], values, rtol=RTOL, err_msg=name)


def test_numbers_that_overflow_are_refused(make_checkpoint):
    model = load(make_checkpoint(seed=3))
    with torch.no_grad():
        part(model, "ffn_down", 2).weight[0, 0] = torch.inf

    with rejects("block_influence_L"):
        activation_scores(model, IDS_ST)


IDS = torch.arange(3, 35).reshape(2, 16)


@pytest.fixture
def model(make_translator):
    return load_model(make_translator(tied=False), dtype="float32", device="cpu")


def silence(block) -> None:
    """Take away all that a block adds to the stream."""
    for name, parameter in block.named_parameters():
        if name.endswith((".o.weight", ".wo.weight")):
            parameter.data.zero_()


def test_text_is_read_half_by_each_stack(model):
    with torch.inference_mode():
        expected = model(input_ids=IDS[:, :8], labels=IDS[:, 8:].contiguous()).logits
        assert torch.equal(model.lm_head(read_text(model, IDS))[:, :8], expected)


def test_a_block_that_does_nothing_turns_nothing(model):
    silence(model.decoder.block[2])
    scores = activation_scores(model, IDS)
    assert [index for index, score in enumerate(scores["block_influence_L"]) if abs(score) < 1e-9] == [2]


def test_the_influence_of_a_block_is_the_turn_of_its_own_stream(model):
    streams: list[torch.Tensor] = []
    for module in (*model.decoder.block, model.decoder.final_layer_norm):
        module.register_forward_pre_hook(lambda _, args: streams.append(args[0].double()))
    found = activation_scores(model, IDS)["block_influence_L"]
    texts = streams[:5], streams[5:]
    turns = [[1 - F.cosine_similarity(*pair, dim=-1) for pair in pairwise(stream)] for stream in texts]
    expected = [torch.stack([turns[0][block], turns[1][block]]).mean().item() for block in range(4)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_block_without_which_nothing_changes_goes_first(model):
    silence(model.decoder.block[3])
    assert removal_order(model, IDS)[0] == 3


def test_the_first_block_may_go_and_the_distances_stay(model):
    """A block is tried with the biases it was given, which are those of the first block's table."""
    silence(model.decoder.block[0])
    assert removal_order(model, IDS)[0] == 0

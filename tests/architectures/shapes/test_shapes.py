"""Shapes against transformers, torch's flop counter and the literature; what engines serve; tiny ones of them."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from architectures.checkpoint import stored_tensors
from architectures.compatibility import quantised_formats, serving_problems, tensor_parallel_degrees
from architectures.families import FAMILIES
from architectures.hub import KNOWN_CONFIGS, read_config
from architectures.requested_shape import ArchitectureConfig, draft_shape
from architectures.shapes import NAMED_SHAPES, Shape, checkpoint_tensors, context_length
from distill.debug import tiny_config, tiny_shapes
from tests.rejections import rejects

CONFIGS = {
    name: KNOWN_CONFIGS[name]
    for name in (
        "models/SmolLM2-135M-Instruct",
        "huggyllama/llama-7b",
        "meta-llama/Llama-3.2-1B",
        "mistralai/Mistral-7B-v0.3",
        "Qwen/Qwen2.5-7B",
    )
}
TINY = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 100,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
VARIANTS = {
    "llama, attention_bias": {**TINY, "model_type": "llama", "attention_bias": True},
    "llama, mlp_bias": {**TINY, "model_type": "llama", "mlp_bias": True},
    "llama, tied": {**TINY, "model_type": "llama", "tie_word_embeddings": True},
    "mistral": {**TINY, "model_type": "mistral"},
    "qwen2": {**TINY, "model_type": "qwen2"},
    "qwen2 ignores attention_bias": {**TINY, "model_type": "qwen2", "attention_bias": False},
    "qwen3": {**TINY, "model_type": "qwen3", "tie_word_embeddings": True},
    "qwen3, attention_bias": {**TINY, "model_type": "qwen3", "attention_bias": True},
    "olmo3": {**TINY, "model_type": "olmo3"},
    "exaone4": {**TINY, "model_type": "exaone4"},
    "seed_oss": {**TINY, "model_type": "seed_oss"},  # biased by default
    "seed_oss, no attention_bias": {**TINY, "model_type": "seed_oss", "attention_bias": False},
    "glm4": {**TINY, "model_type": "glm4", "pad_token_id": 0},
    "ministral3": {**TINY, "model_type": "ministral3"},
    "qwen3_moe": {**TINY, "model_type": "qwen3_moe", **EXPERTS},
}
# method.md 1.1, in millions
PUBLISHED = {
    "deep-1.3b": 1345.4,
    "sheared-2.7b": 2701.6,
    "wide-1.3b": 1333.7,
    "wide-796m": 1274.1,
    "wide-543m": 869.3,
    "wide-290m": 464.5,
    "wide-829m": 566.8,
    "llama-7b": 6738.4,
    "wide-796m-true": 796.3,
    "wide-543m-true": 543.3,
    "wide-290m-true": 290.3,
}


EVERY = pytest.mark.parametrize("config", [*CONFIGS.values(), *VARIANTS.values()], ids=[*CONFIGS, *VARIANTS])


def meta_model(config: dict):
    """A model without memory. Its class comes first: torch cannot be half-imported under a meta device."""
    model, settings = getattr(transformers, FAMILIES[config["model_type"]].architecture), AutoConfig.for_model(**config)
    with torch.device("meta"):
        return model(settings)


@EVERY
def test_parameters_are_transformers_own(config):
    model = meta_model(config)
    shape = Shape.from_config(config)

    assert shape.parameters() == model.num_parameters()
    assert shape.parameters_per_layer() == sum(p.numel() for p in model.model.layers[0].parameters())
    outside = {id(p): p for p in (model.model.embed_tokens.weight, model.lm_head.weight)}
    assert shape.parameters_without_embeddings() == model.num_parameters() - sum(p.numel() for p in outside.values())


@EVERY
def test_tensor_names_and_sizes_are_transformers_own(config):
    shape = Shape.from_config(config)

    family, parameters = FAMILIES[shape.family], meta_model(config).named_parameters()
    stored = [stored_tensors(family.stored_names(name, len(each)), each) for name, each in parameters]

    assert checkpoint_tensors(shape) == {name: tuple(each.shape) for part in stored for name, each in part.items()}


def test_a_written_config_says_what_the_short_one_means():
    for config in CONFIGS.values():
        assert Shape.from_config(AutoConfig.for_model(**config).to_dict()) == Shape.from_config(config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_shapes_have_the_published_true_size(name):
    assert round(NAMED_SHAPES[name].shape.parameters() / 1e6, 1) == PUBLISHED[name]


def test_the_829m_name_counts_the_tied_head_twice():
    shape = NAMED_SHAPES["wide-829m"].shape

    assert round(replace(shape, tied=False).parameters() / 1e6, 1) == 829.4
    assert replace(shape, layers=16) == Shape.from_config(CONFIGS["meta-llama/Llama-3.2-1B"])


def test_llama_7b_is_the_named_shape():
    assert Shape.from_config(CONFIGS["huggyllama/llama-7b"]) == NAMED_SHAPES["llama-7b"].shape


@pytest.mark.parametrize(
    ("name", "mib"), [("wide-1.3b", 120), ("deep-1.3b", 192), ("wide-796m", 80), ("wide-543m", 48), ("wide-290m", 16)]
)
def test_kv_cache_of_1024_tokens_is_the_published_one(name, mib):
    assert NAMED_SHAPES[name].shape.kv_bytes_per_token("bfloat16") * 1024 == mib * 2**20


def test_kv_bytes_are_those_of_a_real_cache():
    config = {**VARIANTS["mistral"], "sliding_window": None}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).eval()
    with torch.inference_mode():
        layers = model(torch.zeros(1, 7, dtype=torch.long), use_cache=True).past_key_values.layers

    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)

    assert Shape.from_config(config).kv_bytes_per_token("float32") * 7 == held


@pytest.mark.parametrize("variant", ["llama, attention_bias", "qwen3_moe"])
@pytest.mark.parametrize("cached", [0, 1, 11])
def test_flops_are_those_torch_counts(cached, variant):
    config = AutoConfig.for_model(**VARIANTS[variant], attn_implementation="eager")
    shape = Shape.from_config(VARIANTS[variant])
    how = {"experts_implementation": "eager"} if shape.experts else {}  # the counter does not know grouped products
    model = AutoModelForCausalLM.from_config(config, **how).eval()
    with torch.inference_mode():
        past = model(torch.zeros(1, cached, dtype=torch.long)).past_key_values if cached else None
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, 1, dtype=torch.long), past_key_values=past)

    name = f"{FAMILIES[shape.family].architecture}.model.rotary_emb"
    rotary = counter.get_flop_counts().get(name, {})  # counted by some versions of torch
    assert counter.get_total_flops() - sum(rotary.values()) == shape.flops_per_token(cached + 1)


OWN_CODE = {"auto_map": {"AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM"}}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "gemma3"}, "gemma3"),
        ({"model_type": "baichuan"}, "trust_remote_code"),
        ({"model_type": "baichuan", **OWN_CODE}, "trust_remote_code"),
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"model_type": "gpt_bigcode", "multi_query": False}, "multi_query"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size 0"),
        ({"hidden_size": "48"}, "hidden_size '48'"),
        ({"model_type": "gpt_neox", "num_attention_heads": 100}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"model_type": "qwen3_moe"}, "num_experts"),
        ({**VARIANTS["qwen3_moe"], "num_experts": 0}, "num_experts 0"),
        ({**VARIANTS["qwen3_moe"], "num_experts_per_tok": "2"}, "num_experts_per_tok '2'"),
        ({**VARIANTS["qwen3_moe"], "mlp_only_layers": [0]}, "mlp_only_layers"),
        ({**VARIANTS["qwen3_moe"], "decoder_sparse_step": 2}, "decoder_sparse_step"),
    ],
)
def test_a_config_of_no_model_that_is_known_is_refused(config, named):
    with rejects("cfg.json:", *named.split()):
        Shape.from_config({**TINY, "model_type": "llama", **config}, where="cfg.json")


WIDE = NAMED_SHAPES["wide-796m"].shape
SMOLLM2 = Shape(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocab=49152, tied=True)


def test_every_named_shape_can_be_served():
    assert all(serving_problems(named.shape) == [] for named in NAMED_SHAPES.values())


def test_degrees_divide_heads_neurons_and_key_value_heads_or_copy_these():
    assert tensor_parallel_degrees(WIDE) == [1, 2, 4, 8, 16, 32]
    assert tensor_parallel_degrees(SMOLLM2) == [1, 3]  # 9 does not divide 1536
    assert tensor_parallel_degrees(replace(SMOLLM2, intermediate=1152)) == [1, 3, 9]
    assert tensor_parallel_degrees(replace(WIDE, kv_heads=8)) == [1, 2, 4, 8, 16, 32]
    assert tensor_parallel_degrees(replace(WIDE, heads=24, kv_heads=4, intermediate=24)) == [1, 2, 4, 8, 12, 24]


def test_block_formats_need_whole_rows():
    assert quantised_formats(WIDE) == "k-quants"
    assert quantised_formats(SMOLLM2) == "q8_0, q4_0"
    assert quantised_formats(replace(WIDE, intermediate=11009)) == "none"
    assert quantised_formats(replace(WIDE, hidden=4096 + 32)) == "q8_0, q4_0"
    assert quantised_formats(replace(SMOLLM2, heads=5, head_dim=2)) == "none"


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


# How long texts a model was made for: by family, by rotary scaling, and where config.json is wrong

LLAMA_4096 = {"model_type": "llama", "max_position_embeddings": 4096}


def tokens(config) -> int | None:
    found = context_length(config, where="config.json")
    return None if found is None else found.tokens


@pytest.mark.parametrize("name", FAMILIES)
def test_of_an_entry_that_is_absent_transformers_default_is_taken(name):
    config = AutoConfig.for_model(name)
    expected = None if name in ("bloom", "t5") else config.max_position_embeddings
    assert tokens({"model_type": name}) == expected
    assert tokens(config.to_dict()) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "gpt2", "n_positions": 128, "n_ctx": 64}, 128),  # its table has n_positions rows
        ({"model_type": "opt", "max_position_embeddings": 30}, 30),  # of 32 rows
        ({"model_type": "bloom", "seq_length": 2048}, None),  # ALiBi
        ({"model_type": "mpt", "max_seq_len": 2048, "attn_config": {"alibi": True}}, None),
        ({"model_type": "mpt", "max_seq_len": 2048, "attn_config": {"alibi": False}}, 2048),
        ({"model_type": "falcon", "max_position_embeddings": 2048, "alibi": True}, None),
        ({"model_type": "codegen", "n_positions": 2048, "n_ctx": 1024}, 1024),
        ({"model_type": "mamba"}, None),
        ({}, None),
    ],
)
def test_the_entry_is_the_familys(config, expected):
    assert tokens(config) == expected


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0], "factor": 32.0}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "factor": 8}
SCALED = {  # config entries -> tokens; the first column of each type's line in context_length's docstring
    "none": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 4096),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
    "linear of transformers 5": ({"rope_parameters": {"rope_type": "linear", "factor": 2}}, 8192),
    "dynamic": ({"rope_scaling": {"rope_type": "dynamic", "factor": 1.5}}, 6144),
    "yarn": ({"rope_scaling": YARN}, 4096),
    "yarn of an entry not raised": ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 16384),
    "yarn, original beside it": ({"original_max_position_embeddings": 2048, "rope_scaling": YARN}, 8192),
    "llama3": ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 1024}}, 4096),
    "longrope": ({"original_max_position_embeddings": 512, "rope_scaling": LONGROPE}, 4096),
    "su": ({"rope_scaling": {**LONGROPE, "rope_type": "su"}}, 4096),
    "gemma 3": ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 4096),
    "by type of layer": ({"rope_parameters": {"full_attention": LINEAR, "sliding_attention": None}}, 32768),
    "null": ({"rope_scaling": None, "rope_parameters": None}, 4096),
}


@pytest.mark.parametrize("name", SCALED)
def test_rotary_scaling_counts_as_it_is_served(name):
    entries, expected = SCALED[name]
    assert tokens({**LLAMA_4096, **entries}) == expected


@pytest.mark.parametrize("name", ["none", "linear", "linear of transformers 5", "dynamic", "yarn", "llama3", "null"])
def test_what_transformers_makes_of_a_config_says_the_same(name):
    entries, expected = SCALED[name]
    theirs = AutoConfig.for_model(**LLAMA_4096, **entries).to_dict()
    assert tokens(theirs) == expected


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ({"max_position_embeddings": 0}, "max_position_embeddings 0"),
        ({"rope_scaling": {"type": "linear", "factor": "four"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
        ({"rope_scaling": {"type": "dynamic", "factor": float("nan")}}, "nan"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"model_type": "falcon", "max_position_embeddings": -3}, "-3"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": -5}}, "-5"),
    ],
)
def test_what_is_no_length_is_refused(entries, named):
    with rejects("here:", *named.split()):
        context_length({**LLAMA_4096, **entries}, where="here")

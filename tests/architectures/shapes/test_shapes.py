"""Shape against transformers' own models on the meta device, torch's flop counter, and the literature's table."""

import re
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from architectures.errors import UserError
from architectures.shapes.shape import NAMED_SHAPES, Shape, checkpoint_tensors
from architectures.shapes.shapes_table import shapes_page, target_page
from architectures.tables import terminal

# As their config.json files on the hub say, entries that do not touch the shape left out.
CONFIGS = {
    "SmolLM2-135M": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "LLaMA-7B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
    "Llama-3.2-1B": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "Mistral-7B": {
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
    "Qwen2.5-0.5B": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
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
VARIANTS = {
    "llama, attention_bias": {**TINY, "model_type": "llama", "attention_bias": True},
    "llama, mlp_bias": {**TINY, "model_type": "llama", "mlp_bias": True},
    "llama, tied": {**TINY, "model_type": "llama", "tie_word_embeddings": True},
    "mistral": {**TINY, "model_type": "mistral"},
    "qwen2": {**TINY, "model_type": "qwen2"},
    "qwen2 ignores attention_bias": {**TINY, "model_type": "qwen2", "attention_bias": False},
    "qwen3, attention_bias": {**TINY, "model_type": "qwen3", "attention_bias": True},
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


MODELS = {
    "llama": LlamaForCausalLM,
    "mistral": MistralForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
}


def meta_model(config: dict):
    """A model without memory. The class is imported above: torch cannot be half-imported under a meta device."""
    settings = AutoConfig.for_model(**config)
    with torch.device("meta"):
        return MODELS[config["model_type"]](settings)


@pytest.mark.parametrize("config", [*CONFIGS.values(), *VARIANTS.values()], ids=[*CONFIGS, *VARIANTS])
def test_parameters_are_transformers_own(config):
    model = meta_model(config)
    shape = Shape.from_config(config)

    assert shape.parameters() == model.num_parameters()
    assert shape.parameters_per_layer() == sum(p.numel() for p in model.model.layers[0].parameters())
    outside = {id(p): p for p in (model.model.embed_tokens.weight, model.lm_head.weight)}
    assert shape.parameters_without_embeddings() == model.num_parameters() - sum(p.numel() for p in outside.values())


@pytest.mark.parametrize("config", [*CONFIGS.values(), *VARIANTS.values()], ids=[*CONFIGS, *VARIANTS])
def test_tensor_names_and_sizes_are_transformers_own(config):
    shape = Shape.from_config(config)

    found = {name: tuple(p.shape) for name, p in meta_model(config).named_parameters()}

    assert checkpoint_tensors(shape) == found


def test_a_written_config_says_what_the_short_one_means():
    for config in CONFIGS.values():
        assert Shape.from_config(AutoConfig.for_model(**config).to_dict()) == Shape.from_config(config)


def test_counts_of_known_models():
    assert Shape.from_config(CONFIGS["SmolLM2-135M"]).parameters() == 134_515_008
    assert Shape.from_config(CONFIGS["LLaMA-7B"]).parameters() == 6_738_415_616
    assert Shape.from_config(CONFIGS["Llama-3.2-1B"]).parameters() == 1_235_814_400
    assert Shape.from_config(CONFIGS["Qwen2.5-0.5B"]).parameters() == 494_032_768


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_shapes_have_the_published_true_size(name):
    assert round(NAMED_SHAPES[name].shape.parameters() / 1e6, 1) == PUBLISHED[name]


def test_the_829m_name_counts_the_tied_head_twice():
    shape = NAMED_SHAPES["wide-829m"].shape

    assert round(replace(shape, tied=False).parameters() / 1e6, 1) == 829.4
    assert replace(shape, layers=16) == Shape.from_config(CONFIGS["Llama-3.2-1B"])


def test_llama_7b_is_the_named_shape():
    assert Shape.from_config(CONFIGS["LLaMA-7B"]) == NAMED_SHAPES["llama-7b"].shape


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


def test_weight_bytes_are_the_published_file_sizes():
    shape = NAMED_SHAPES["wide-796m"].shape

    assert round(shape.weight_bytes("float32") / 1e9, 3) == 5.096
    assert shape.weight_bytes("bfloat16") == shape.weight_bytes("float16") == shape.parameters() * 2


@pytest.mark.parametrize("cached", [0, 1, 11])
def test_flops_are_those_torch_counts(cached):
    config = AutoConfig.for_model(**VARIANTS["llama, attention_bias"], attn_implementation="eager")
    shape = Shape.from_config(VARIANTS["llama, attention_bias"])
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.inference_mode():
        past = model(torch.zeros(1, cached, dtype=torch.long)).past_key_values if cached else None
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, 1, dtype=torch.long), past_key_values=past)

    rotary = counter.get_flop_counts().get("LlamaForCausalLM.model.rotary_emb", {})  # counted by some versions of torch
    assert counter.get_total_flops() - sum(rotary.values()) == shape.flops_per_token(cached + 1)


def test_unknown_family_is_named():
    with pytest.raises(UserError, match=r"cfg.json: model_type 'gemma3' is not a known family\. .*llama, mistral"):
        Shape.from_config({**TINY, "model_type": "gemma3"}, where="cfg.json")


@pytest.mark.parametrize(
    "own_code", [{"auto_map": {"AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM"}}, {}]
)
def test_a_family_of_code_that_comes_with_its_checkpoints_is_refused_by_name(own_code):
    message = (
        r"cfg\.json: model_type 'baichuan' is Python code that comes with the checkpoint \(trust_remote_code\), which "
        r"is never run, .* W_pack .* save it as model_type llama with the three apart"
    )
    with pytest.raises(UserError, match=message):
        Shape.from_config({**TINY, "model_type": "baichuan", **own_code}, where="cfg.json")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "opt", "do_layer_norm_before": False},
            "do_layer_norm_before is False; of opt .* those with True",
        ),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        (
            {"model_type": "gpt_bigcode", "multi_query": False},
            "multi_query is False; of gpt_bigcode .* those with True",
        ),
    ],
)
def test_an_entry_that_makes_another_model_is_refused(config, message):
    with pytest.raises(UserError, match=message):
        Shape.from_config(config)


def test_quantised_checkpoint_is_refused():
    config = {**TINY, "model_type": "llama", "quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(UserError, match=r"quantised .quant_method 'fp8'"):
        Shape.from_config(config)


@pytest.mark.parametrize("value", [None, 0, "48"])
def test_missing_or_wrong_entry_is_named(value):
    with pytest.raises(UserError, match=f"hidden_size must be a whole number > 0 and <= 16,777,216, got {value!r}"):
        Shape.from_config({**TINY, "model_type": "llama", "hidden_size": value})


def test_heads_must_divide():
    with pytest.raises(UserError, match="num_attention_heads must divide hidden_size, got 100 and"):
        Shape.from_config({**TINY, "model_type": "gpt_neox", "num_attention_heads": 100})
    with pytest.raises(UserError, match="num_key_value_heads must divide num_attention_heads, got 3 and 4"):
        Shape.from_config({**TINY, "model_type": "llama", "num_key_value_heads": 3})


def test_table_shows_nominal_beside_true_size():
    lines = terminal(*shapes_page()).splitlines()

    assert lines[0].split()[:5] == ["name", "nominal", "layers", "hidden", "intermediate"]
    row = next(line for line in lines if line.startswith("wide-796m "))
    sizes, costs = row.split()[:8], row.split()[8:]
    assert sizes == ["wide-796m", "796M", "5", "4096", "11008", "32", "32", "128"]
    assert costs == ["1274.1M", "1011.9M", "202.4M", "2.37", "80", "1,2,4,8,16,32", "k-quants"]
    assert [line.split()[0] for line in lines[1 : 1 + len(NAMED_SHAPES)]] == list(NAMED_SHAPES)


def test_a_targets_table_says_what_can_be_cut_and_why_the_rest_cannot():
    target = Shape.from_config({**CONFIGS["LLaMA-7B"], "vocab_size": 32016})
    lines = terminal(*target_page(target, "a/b")).splitlines()

    assert lines[0] == "a/b"
    rows = {line.split()[0]: line.split() for line in lines[3:] if line and not line.startswith(" ")}
    assert rows["target"][1:7] == ["32", "4096", "11008", "32", "32", "128"]
    assert rows["wide-796m"][8] == "1274.2M"  # 16 more rows of embedding and head
    refused = [line for line in lines if re.match(r" {2}\S", line)]
    assert [line.split(":")[0].strip() for line in refused] == ["wide-829m", "llama-13b", "llama-65b"]
    assert "it has heads 64 wide, the target 128." in refused[0]
    assert "it exceeds the target in layers 40 (target 32), hidden 5120 (target 4096)" in refused[1]

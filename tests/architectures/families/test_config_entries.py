"""config.json and generation_config.json: every entry is one a model may have, or is named with its value."""

import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from architectures.errors import UserError
from architectures.families.config_entries import (
    ACTIVATIONS,
    CONFIG,
    GENERATION,
    ROPE_TYPES,
    require_config,
    require_generation_config,
)
from architectures.hub import KNOWN_CONFIGS, read_config
from tests.rejections import rejects

VALID = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 264,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu", "dtype": "float32",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": True,
    "attention_dropout": 0.0, "eos_token_id": [2, 7], "bos_token_id": 1, "pad_token_id": -1, "sliding_window": None,
    "rope_scaling": None,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
HARD = (None, "", "a", -1, 0, 1.5, 10**12, 10**400, float("nan"), float("inf"), True, [], ["a"], {}, {"a": [1]})
REFUSED = [
    *((name, value) for name in SIZES for value in HARD),
    *((name, value) for name in ("num_key_value_heads", "head_dim", "sliding_window") for value in HARD[1:]),
    *(("max_position_embeddings", value) for value in (0, -1, 1.5, "8", True, None, 10**12)),
    *(("rms_norm_eps", value) for value in HARD),
    *(("rope_theta", value) for value in ("10000", 0, -1.0, 1, float("nan"), float("inf"), None, True, [])),
    *(("hidden_act", value) for value in (None, 3, "", "siluu", ["silu"], {})),
    *(("tie_word_embeddings", value) for value in ("true", "false", 1, 0, None, [])),
    *((name, value) for name in ("dtype", "torch_dtype") for value in ("floa32", "int8", 16, "", "load_state_dict")),
    *(("eos_token_id", value) for value in ("a", -1, 1.5, True, ["a"], [[2]], {}, 264, [2, 264], float("nan"))),
    *(("pad_token_id", value) for value in ("a", -2, 264, [0], True)),
    *(("bos_token_id", value) for value in ("a", -1, [1], True)),
    *(("layer_types", value) for value in ("full_attention", ["a"] * 4, [1] * 4, ["full_attention"] * 3, {})),
    *(
        ("sliding_window_pattern", value) for value in (0, -1, 2.5, True, "", "LLLX", "LLLG", None, [4])
    ),  # no layer_types
    *(("quantization_config", value) for value in ("fp8", [1], 8)),
    *(("text_config", value) for value in ("a", [1], {"vocab_size": 0}, {"hidden_size": "a"})),
    *(("return_dict", value) for value in (False, None, "true")),
    ("num_labels", 10**12),
    *((name, value) for name in ("num_experts", "num_experts_per_tok") for value in (0, -1, "8", 1.5, True, [8])),
    *(("no_rope_layers", value) for value in ([2], [1, 0.5, 1, 1], ["a"], "1", [1, 0, 1])),
    *((name, value) for name in ("logits_scaling", "residual_multiplier") for value in (0, -1.0, "8", None, True)),
    ("attn_implementation", "somebody/kernel"),
    ("temperature", "hot"),
    ("model_type", 3),
]
ROPES = (
    "linear", 3, ["linear"], {"rope_type": "nonesuch"}, {"rope_type": 3}, {"rope_theta": 0}, {"rope_theta": "a"},
    {"rope_type": "linear"}, {"rope_type": "linear", "factor": 0}, {"type": "dynamic", "factor": "8"},
    {"rope_type": "longrope", "short_factor": 1, "long_factor": [1.0]}, {**LLAMA3, "high_freq_factor": 1.0},
    {**LLAMA3, "low_freq_factor": None}, {**LLAMA3, "original_max_position_embeddings": 0}, {**LLAMA3, "factor": 1e400},
    {"full_attention": {"rope_theta": 0.0}},
)  # fmt: skip


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_an_entry_that_no_model_has_is_refused_with_file_entry_and_remedy(name, value):
    with rejects("folder/config.json:", name):
        require_config({**VALID, name: value}, "folder/config.json")


@pytest.mark.parametrize("value", ROPES, ids=str)
@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_rotary_settings_that_cannot_be_computed_with_are_refused(name, value):
    with rejects("config.json:", name):
        require_config({**VALID, name: value}, "config.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["sliding_attention"] * 4},
        {"model_type": "gemma2"},
        {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 4, "sliding_window": 8},
    ],
)
def test_windows_of_no_width_are_refused(changes):
    with rejects("sliding_window"):
        require_config({**VALID, **changes}, "config.json")
    require_config({**VALID, **changes, "sliding_window": 8, "use_sliding_window": True}, "config.json")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": LLAMA3},
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
        {"eos_token_id": None, "head_dim": None, "num_key_value_heads": None, "rope_parameters": {}},
        {"an_entry_of_the_future": {"deep": [1]}, "text_config": dict(VALID)},
        {"model_type": "granitemoehybrid", "num_local_experts": 0},
    ],
    ids=str,
)
def test_what_models_have_is_accepted(changes):
    require_config({**VALID, **changes}, "config.json")


@pytest.mark.parametrize("name", KNOWN_CONFIGS)
def test_published_configs_are_accepted(name):
    require_config(KNOWN_CONFIGS[name], name)


def test_names_are_those_that_transformers_knows():
    assert set(ACTIVATIONS.split()) == set(ACT2FN)
    assert set(ROPE_INIT_FUNCTIONS) | {"default"} <= set(ROPE_TYPES.split())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eos_token_id", ["</s>"]), ("pad_token_id", {}), ("suppress_tokens", ["a"]), ("temperature", -1), ("top_p", 2),
        ("top_k", 1.5), ("max_new_tokens", 0), ("do_sample", "yes"), ("num_assistant_tokens_schedule", "never"),
    ],
)  # fmt: skip
def test_a_malformed_generation_config_is_refused(name, value):
    with rejects("generation_config.json:", name):
        require_generation_config({"eos_token_id": 2, name: value}, "folder/generation_config.json")


def test_a_generation_config_is_read_with_the_config_beside_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(VALID))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7], "temperature": 0.6, "top_k": null}')
    assert read_config(tmp_path) == VALID
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "a"}')
    with rejects("generation_config.json:", "eos_token_id"):
        read_config(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=10_000, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(CONFIG | GENERATION)), JSON, max_size=3))
def test_any_entries_are_accepted_or_refused(changes):
    with suppress(UserError):
        require_config({**VALID, **changes}, "config.json")

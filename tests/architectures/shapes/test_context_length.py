"""How long texts a model was made for: by family, by rotary scaling, and where config.json is wrong."""

import pytest
from transformers import AutoConfig

from architectures.families import FAMILIES
from architectures.shapes import context_length
from tests.rejections import rejects

LLAMA = {"model_type": "llama", "max_position_embeddings": 4096}


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
    assert tokens({**LLAMA, **entries}) == expected


@pytest.mark.parametrize("name", ["none", "linear", "linear of transformers 5", "dynamic", "yarn", "llama3", "null"])
def test_what_transformers_makes_of_a_config_says_the_same(name):
    entries, expected = SCALED[name]
    theirs = AutoConfig.for_model(**LLAMA, **entries).to_dict()
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
        context_length({**LLAMA, **entries}, where="here")

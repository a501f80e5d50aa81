"""Compatibility of a target and a draft with each engine: a clean pair has no problem, and each change has its own."""

import json
from dataclasses import replace

import pytest

from architectures.compatibility import (
    ENGINES,
    Model,
    Pair,
    Tokenizer,
    check,
    read_model,
    serve_command,
)
from architectures.manifest import write_manifest
from architectures.shapes import Shape
from tests.rejections import rejects

CONFIG = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
IDS = {f"<{number}>": number for number in range(300)}
TOKENIZER = Tokenizer(ids=IDS, kind="BPE", special=(1, 2), template="null")


def model(name, **changed):
    sizes = {key: changed.pop(key) for key in (*CONFIG, "tie_word_embeddings", "head_dim") if key in changed}
    config = CONFIG | sizes
    values = {
        "name": name,
        "path": f"/{name}",
        "model_type": config["model_type"],
        "vocab_size": config["vocab_size"],
        "shape": Shape.from_config(config),
        "context": 128,
        "dtype": "float32",
        "tokenizer": TOKENIZER,
    }
    return Model(**(values | changed))


CLEAN = Pair(draft=model("draft"), target=model("target"))
SWAPPED = replace(TOKENIZER, ids=IDS | {"<70>": 71, "<71>": 70})
OWN = {"vocab_size": 100, "form": "own-tokenizer"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_clean_pair_has_no_problem(engine):
    assert check(engine, CLEAN) == []


FATAL, WARN = True, False
EVERY = dict.fromkeys(ENGINES, FATAL)
WARNED = dict.fromkeys(ENGINES, WARN)
OWN_HEAD = {"model_type": "gemma2", "tie_word_embeddings": False, "head_dim": 16}
SHARED_HIDDEN = {"model_type": "olmo2", "tie_word_embeddings": False, "head_dim": 32}
BY_ID = dict.fromkeys(("sglang", "llama.cpp", "tensorrt-llm"), FATAL)
CASES = {
    "another vocabulary": ({"vocab_size": 400}, "vocabulary", EVERY | {"llama.cpp": None}),
    "a far larger vocabulary": ({"vocab_size": 500}, "vocabulary", EVERY),
    "an own tokenizer": (OWN, "vocabulary", EVERY | {"vllm": WARN, "transformers": None}),
    "a reduced vocabulary": ({"small_head": 50}, "output head", EVERY | {"transformers": WARN}),
    "a planned one": ({"small_head": 50, "planned": True}, "output head", WARNED),
    "swapped tokens": ({"tokenizer": SWAPPED}, "tokenizer", WARNED | BY_ID),
    "another BOS": ({"tokenizer": replace(TOKENIZER, special=(3, 2))}, "tokenizer", {"llama.cpp": FATAL}),
    "no tokenizer": ({"tokenizer": None}, "tokenizer", WARNED),
    "another template": ({"tokenizer": replace(TOKENIZER, template="x")}, "chat template", WARNED),
    "a shorter context": ({"context": 64}, "length", WARNED),
    "another dtype": ({"dtype": "bfloat16"}, "dtype", {"vllm": WARN}),
    "a misleading name": ({"path": "/runs/Eagle-draft"}, "name", {"vllm": FATAL}),
    "packed weights": ({"is_quantized": True}, "quantisation", WARNED),
    "an unknown type": ({"shape": None}, "model type", WARNED),
    "a head of its own": (OWN_HEAD, "output head", dict.fromkeys(("vllm", "sglang", "llama.cpp"), FATAL)),
    "heads that share hidden": (SHARED_HIDDEN, "shape", dict.fromkeys(("sglang", "llama.cpp"), FATAL)),
    "an odd head_dim": ({"head_dim": 15}, "shape", EVERY),
    "a type of few engines": ({"model_type": "smollm3"}, "model type", {"vllm": WARN, "sglang": WARN}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_each_change_is_found_in_the_engines_that_mind_it(engine, case):
    changed, what, minding = CASES[case]
    problems = check(engine, replace(CLEAN, draft=model("draft", **changed)))
    found = {problem.what: problem.is_fatal for problem in problems}
    assert found.get(what) == minding.get(engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_devices_must_divide_heads_and_widths(engine):
    def is_fatal(degree):
        return [each.is_fatal for each in check(engine, replace(CLEAN, tensor_parallel=degree))]

    divides = engine in ("vllm", "sglang")
    assert is_fatal(2) == ([] if divides else [False])
    assert is_fatal(3) == ([True, True] if divides else [False])


def test_a_family_without_a_head_in_vllm_has_no_own_tokenizer_there():
    draft = model("draft", **OWN, model_type="gemma2", tie_word_embeddings=True, head_dim=16)
    [first, *_] = check("vllm", replace(CLEAN, draft=draft))
    assert (first.what, first.is_fatal) == ("vocabulary", True)


@pytest.mark.parametrize("engine", ENGINES)
def test_template_arguments_of_training_are_defaults_of_servers_or_asked_for(engine):
    pair = replace(CLEAN, draft=model("draft", chat_template_kwargs={"enable_thinking": False}))
    flags = dict.fromkeys(("vllm", "sglang"), "--default-chat-template-kwargs") | {
        "llama.cpp": "--chat-template-kwargs"
    }
    problems = [problem.what for problem in check(engine, pair)]
    assert problems == ([] if engine in flags else ["chat template"])
    words = serve_command(engine, pair).split(" \\\n  ")
    assert words[-1] == (f"{flags[engine]} '{{\"enable_thinking\": false}}'" if engine in flags else words[-1])
    assert "enable_thinking" not in serve_command(engine, CLEAN)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_say_if_they_roll_recurrent_layers_back(engine):
    [of_target] = check(engine, replace(CLEAN, target=model("target", is_recurrent=True)))
    [of_draft] = check(engine, replace(CLEAN, draft=model("draft", is_recurrent=True)))
    assert (of_target.what, of_target.is_fatal) == ("recurrent layers", engine == "transformers")
    assert (of_draft.what, of_draft.is_fatal) == ("recurrent layers", False)


@pytest.mark.parametrize(
    ("config", "is_recurrent"),
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, True),
        ({"linear_conv_kernel_dim": 4, "full_attention_interval": 4}, True),
        ({"layers_block_type": ["mamba", "attention", "mlp"]}, True),
        ({"mamba_d_state": 16, "attn_layer_indices": [1]}, True),
        ({"conv_L_cache": 3, "layer_types": ["conv", "full_attention"]}, True),
        ({"mamba_d_state": 16, "layer_types": ["attention", "attention"]}, False),
        ({"layer_types": ["sliding_attention", "full_attention"]}, False),
        ({}, False),
    ],
)
def test_recurrent_layers_are_found_in_the_config(config, is_recurrent, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": "other", **config}))
    assert read_model(str(tmp_path)).is_recurrent is is_recurrent


@pytest.mark.parametrize("settings", [[{}], [{"enable_thinking": False}], [{"enable_thinking": False}, {}]])
def test_the_one_setting_of_the_template_is_read_from_the_manifest(settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_manifest(tmp_path, stage="export", inputs={}, chat_template_kwargs=settings)
    assert read_model(str(tmp_path)).chat_template_kwargs == (settings[0] if len(settings) == 1 else {})


def test_commands_name_both_models_and_the_number_of_tokens():
    pair = replace(CLEAN, num_speculative_tokens=5, revision="v1", tensor_parallel=2)
    commands = {engine: serve_command(engine, pair) for engine in ENGINES}
    assert all(
        "draft" in command and "target" in command for engine, command in commands.items() if engine[:6] != "tensor"
    )
    assert '"num_speculative_tokens": 5, "draft_tensor_parallel_size": 2' in commands["vllm"]
    assert "--revision v1 --tensor-parallel-size 2" in commands["vllm"]
    assert "--speculative-num-steps 5" in commands["sglang"]
    assert "--speculative-num-draft-tokens 6" in commands["sglang"]
    assert "max_draft_len: 5" in commands["tensorrt-llm"]
    assert "num_assistant_tokens=5" in commands["openvino"]


def test_facts_are_read_from_a_folder(tiny_target, tmp_path):
    found = read_model(str(tiny_target))
    config = json.loads((tiny_target / "config.json").read_text())
    assert (found.model_type, found.vocab_size) == (config["model_type"], config["vocab_size"])
    assert found.context == config["max_position_embeddings"]
    assert found.tokenizer is not None
    assert len(found.tokenizer.ids) > 200
    with rejects("nowhere"):
        read_model(str(tmp_path / "nowhere"))

"""Text models of multimodal checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from architectures.hub import read_config, resolve_checkpoint
from architectures.shapes import model_shape
from architectures.text_part import import_text_model, text_names
from distill.check import check_recipe
from distill.pipeline import prune_stage
from distill.run import Run
from tests.conftest import build_tokenizer
from tests.distill.recipe_files import tiny_recipe, write_prompts
from tests.rejections import rejects

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "intermediate_size_mlp": 96,
    "vocab_size": 264,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "max_position_embeddings": 256,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 264,
    "global_head_dim": 16,
    "num_kv_shared_layers": 0,
    "no_rope_layers": [1, 1, 0],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "depth": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "intermediate_size": 32,
    "out_hidden_size": 64,
    "projection_input_dim": 32,
    "projector_input_dim": 32,
    "projector_output_dim": 64,
    "vision_output_dim": 64,
}
SLIDING = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
WRAPPERS = {  # model_type: that of its text model, and entries that this needs in addition
    "gemma3": ("gemma3_text", SLIDING),
    "gemma4": ("gemma4_text", SLIDING),
    "mistral3": ("mistral", {}),
    "qwen2_5_vl": ("qwen2", {"rope_parameters": ROPE | {"mrope_section": [2, 3, 3]}}),
    "qwen3_vl": ("qwen3", {"rope_parameters": ROPE | {"mrope_section": [4, 2, 2]}}),
    "qwen3_5": ("qwen3_5_text", {"layer_types": ["linear_attention", "linear_attention", "full_attention"]}),
    "llama4": ("llama4_text", {"layer_types": ["full_attention"] * 3}),
}


@pytest.fixture
def make_wrapper(tmp_path):
    def make(model_type: str, *, tied: bool) -> Path:
        kind: Any = CONFIG_MAPPING[model_type]
        default = kind()
        parts = {"text_config": SIZES, "vision_config": VISION}
        parts = {name: sizes for name, sizes in parts.items() if getattr(default, name) is not None}
        known = {name: getattr(default, name).to_dict() for name in parts}
        small = {
            name: {"model_type": known[name]["model_type"]} | {k: v for k, v in sizes.items() if k in known[name]}
            for name, sizes in parts.items()
        }
        small["text_config"] |= WRAPPERS[model_type][1]
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(kind(**small, tie_word_embeddings=tied))
        model.save_pretrained(tmp_path / "whole")
        build_tokenizer().save_pretrained(tmp_path / "whole")
        return tmp_path / "whole"

    return make


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", WRAPPERS)
def test_the_text_model_has_the_logits_of_the_whole(make_wrapper, tmp_path, model_type, tied):
    folder = make_wrapper(model_type, tied=tied)
    import_text_model(folder, tmp_path / "text")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "text", dtype=torch.float32, output_loading_info=True)
    text, report = loaded
    assert not any(report.values())
    assert text.config.model_type == WRAPPERS[model_type][0]
    whole: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    ids = torch.randint(3, 200, (2, 11))
    with torch.inference_mode():
        logits, expected = (each(input_ids=ids, use_cache=False).logits for each in (text, whole))
    assert torch.equal(logits, expected)
    assert (tmp_path / "text/tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("model_type", ["gemma3", "qwen3_5"])
def test_a_draft_is_pruned_from_the_text_model(make_wrapper, tmp_path, model_type):
    folder = make_wrapper(model_type, tied=True)
    lengths = {"num_eval_prompts": 2, "max_seq_len": 64, "max_new_tokens": 8}
    data = {"prompts": [{"path": str(write_prompts(tmp_path, 10))}], **lengths}
    recipe = tiny_recipe(tmp_path / "run", folder, {"layers": 2, "method": "first_last"}, data)
    check_recipe(recipe)
    assert model_shape(read_config(folder)).layers == 3
    run = Run.of(recipe)
    prune_stage(run)
    draft = read_config(run.init.path)
    assert (draft["model_type"], draft["num_hidden_layers"]) == (WRAPPERS[model_type][0], 2)
    changed = (run.imported_target / "model.safetensors").stat().st_mtime_ns
    assert Run.of(recipe).target == run.imported_target
    assert (run.imported_target / "model.safetensors").stat().st_mtime_ns == changed


def test_other_commands_need_an_imported_text_model(make_wrapper):
    folder = make_wrapper("mistral3", tied=False)
    with rejects(str(folder)):
        resolve_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        (
            "language_model.model.layers.0.mlp.up_proj.weight",
            "model.layers.0.mlp.up_proj.weight",
        ),  # before transformers 5
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.visual.blocks.0.mlp.up_proj.weight", None),
        ("mtp.layers.0.mlp.up_proj.weight", None),
    ],
)
def test_names_of_published_checkpoints(stored, name):
    norm, vision = "model.language_model.norm.weight", "vision_tower.norm.weight"
    assert text_names([stored, norm, vision]) == {"model.norm.weight": norm} | ({name: stored} if name else {})


def test_names_of_the_first_qwen_vl_checkpoints():
    assert text_names(["model.norm.weight", "visual.norm.weight"]) == {"model.norm.weight": "model.norm.weight"}

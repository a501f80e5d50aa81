"""Depth pruning of every decoder of the installed transformers that has no entry in FAMILIES."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from architectures.checkpoint import write_weights
from architectures.families import FAMILIES
from architectures.families.config_entries import TEXT_PARTS
from architectures.files import write_json
from architectures.pruning.depth import decoder_layers, prune_depth
from architectures.pruning.importance import activation_scores, removal_order, skipping
from architectures.pruning.plan import PruningPlan, plan_pruning
from architectures.requested_shape import ArchitectureConfig
from architectures.shapes import model_shape
from tests.rejections import rejects

LAYERS = 6
KEPT = (0, 2, 3, 5)
SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 256),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16,
    "n_group": 1,
    "topk_group": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEADS, ROTARY = {"head_dim": 16}, {"rotary_dim": 16}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "head_dim": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
SHARED = {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 3}
NEEDED: dict[str, dict[str, Any]] = {  # entries that a family needs in addition
    **dict.fromkeys(("axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"), LATENT),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"), HEADS),
    **dict.fromkeys(("codegen", "gptj"), ROTARY),
    **dict.fromkeys(("bamba", "granitemoehybrid"), MAMBA),
    "falcon_h1": MAMBA | {"mamba_d_ssm": 128},
    "dots1": {"num_key_value_heads": 2, "n_shared_experts": 1},
    "gemma3n_text": SHARED
    | {"laurel_rank": 8, "altup_num_inputs": 2, "intermediate_size": [128] * LAYERS}
    | {"activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]},
    "gemma4_text": SHARED,
    "gemma4_unified_text": {"layer_types": ["sliding_attention", "full_attention"] * 3},
    "gpt_neo": {"attention_types": [[["global", "local"], 3]]},
    "kimi_linear": {"num_key_value_heads": 4, "linear_num_heads": 4, "linear_head_dim": 16}
    | {"layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3, "num_dense_layers": 2},
    "mamba2": {"num_heads": 8},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "moe", "mamba", "mamba", "attention"]},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"] * 3},
    "xmod": {"default_language": "en_XX"},
}
REJECTED = {  # model_type: why its layers cannot be removed, as found by prune_depth
    "beam": "layers add residuals by a running index",
    "big_bird": "layers differ in the seed of their random attention",
    "deepseek_v4": "integer tensors",
    "diffllama": "a constant that depends on the layer",
    "hrm_text": "two lists of layers",
    "jamba": "layers alternate by a period",
    "longcat_flash": "two attention blocks per layer",
    "minicpm3": "residuals are scaled by the number of layers",
    "minimax": "decay rates depend on the layer's place",
    "recurrent_gemma": "layers alternate by a period",
    "xlstm": "the number of layers has another entry",
}
NOT_TESTED = {  # model_type: why no tiny model is built
    **dict.fromkeys(
        ("blt", "git", "moshi", "musicgen", "musicgen_melody", "phi4_multimodal", "trocr"), "no text decoder"
    ),
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), "reads the states of its target"),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "inkling2_text"), "no small sizes"),
    **dict.fromkeys(("cohere_compass_text", "cpmant", "dbrx", "dots3_note_text"), "the sizes above do not fit"),
    **dict.fromkeys(("qwen4_exp_text", "reformer", "xlm", "zamba", "zamba2", "zaya"), "the sizes above do not fit"),
    "rwkv": "weights are divided by a power of the layer's place",
}


def is_text_decoder(model_type: str) -> bool:
    config: Any = CONFIG_MAPPING[model_type]
    if config.model_type in FAMILIES:  # under another name
        return False
    return not config.sub_configs.keys() & {*TEXT_PARTS} and not config().to_dict().get("is_encoder_decoder")


OTHERS = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - FAMILIES.keys() - NOT_TESTED.keys())
DECODERS = [name for name in OTHERS if is_text_decoder(name)]


def tiny_model(model_type: str, folder: Path) -> Any:
    """Save a random model of six layers, and load it."""
    kind = CONFIG_MAPPING[model_type]
    known = kind().to_dict() | dict.fromkeys(kind.attribute_map, 1)
    fixed = [name for name in ("head_dim", "num_key_value_heads") if known.get(name) is None]
    fixed += [name for name in SMALL if isinstance(getattr(kind, name, None), property)]
    make: Any = kind
    config = make(**{k: v for k, v in SMALL.items() if k in known and k not in fixed} | NEEDED.get(model_type, {}))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    for each in model.parameters():
        each.data.add_(torch.randn_like(each) * 0.05)
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def pruned(source: Path, kept: tuple[int, ...], out: Path) -> Any:
    """Save the draft of some layers, and load it without missing or unexpected tensors."""
    config = json.loads((source / "config.json").read_text())
    shape = model_shape(config)
    plan = PruningPlan(source_layers=kept, source=shape, draft=replace(shape, layers=len(kept)), method="given")
    layout, read, draft_config = prune_depth(source, config, plan, None)
    out.mkdir()
    write_weights(layout, read, out)
    write_json(draft_config, out / "config.json")
    loaded: Any = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    model, report = loaded
    assert not any(report.values())
    return model


IDS = torch.randint(3, 100, (2, 12), generator=torch.Generator().manual_seed(0))


@torch.inference_mode()
def logits_of(model: Any) -> torch.Tensor:
    return model(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("model_type", [name for name in DECODERS if name not in REJECTED])
def test_removed_layers_are_the_identity(model_type, tmp_path):
    whole = tiny_model(model_type, tmp_path / "whole")
    assert torch.equal(logits_of(pruned(tmp_path / "whole", tuple(range(LAYERS)), tmp_path / "same")), logits_of(whole))
    draft = pruned(tmp_path / "whole", KEPT, tmp_path / "draft")
    _, layers = decoder_layers(whole)
    with skipping(layers[layer] for layer in range(LAYERS) if layer not in KEPT):
        expected = logits_of(whole)
    assert torch.equal(logits_of(draft), expected)


@pytest.mark.parametrize("model_type", sorted(REJECTED.keys() & {*DECODERS}))
def test_layers_that_depend_on_their_place_cannot_be_removed(model_type, tmp_path):
    tiny_model(model_type, tmp_path / "whole")
    with rejects(str(tmp_path)):
        pruned(tmp_path / "whole", KEPT, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


def test_the_layer_that_others_read_from_must_be_kept(tmp_path):
    """Layers 4 and 5 of this Gemma 4 read the keys and values of 2 and 3."""
    tiny_model("gemma4_text", tmp_path / "whole")
    with rejects("config.json"):
        pruned(tmp_path / "whole", (0, 1, 2, 5), tmp_path / "draft")


@pytest.mark.parametrize("model_type", ["lfm2_moe", "qwen3_5_text"])
def test_an_attention_layer_must_be_kept(model_type, tmp_path):
    """Layers 0 and 2 are recurrent: transformers could not count the tokens in their cache."""
    tiny_model(model_type, tmp_path / "whole")
    with rejects("config.json", "architecture.method"):
        pruned(tmp_path / "whole", (0, 2), tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


def test_scores_of_any_family(tmp_path):
    """Removal order against a plain search, block influence against the definition."""
    model = tiny_model("olmoe", tmp_path / "whole")
    _, layers = decoder_layers(model)
    whole = logits_of(model).log_softmax(-1)

    def change(removed: tuple[int, ...]) -> float:
        with skipping(layers[layer] for layer in removed):
            return float((whole.exp() * (whole - logits_of(model).log_softmax(-1))).sum(-1).mean())

    order: list[int] = []
    while len(order) < LAYERS - 1:
        left = [layer for layer in range(LAYERS) if layer not in order]
        order.append(min(left, key=lambda layer: change((*order, layer))))
    assert removal_order(model, IDS) == order

    with torch.inference_mode():
        states = model(input_ids=IDS, use_cache=False, output_hidden_states=True).hidden_states
    scores = activation_scores(model, IDS)
    assert [*scores] == ["block_influence_L"]
    for layer in range(LAYERS - 1):  # transformers lists the last state after the final norm
        turn = 1 - torch.cosine_similarity(states[layer].double(), states[layer + 1].double(), dim=-1)
        assert scores["block_influence_L"][layer] == pytest.approx(float(turn.mean()), rel=1e-6)


def test_a_plan_keeps_the_sizes_of_any_family(tmp_path):
    tiny_model("olmoe", tmp_path)
    shape = model_shape(json.loads((tmp_path / "config.json").read_text()))
    plan = plan_pruning(shape, ArchitectureConfig(layers=2, method="evenly_spaced"))
    assert PruningPlan.from_json(plan.to_json()) == plan


WIDTHS = [{"hidden": 32}, {"heads": 2}, {"experts": 2}, {"method": "merge"}, {"vocabulary": {"size": 64}}]


@pytest.mark.parametrize("wanted", WIDTHS)
def test_only_whole_layers_can_be_pruned(wanted, tmp_path):
    tiny_model("olmoe", tmp_path)
    shape = model_shape(json.loads((tmp_path / "config.json").read_text()))
    with rejects("architecture"):
        plan_pruning(shape, ArchitectureConfig.model_validate({"layers": 2} | wanted))

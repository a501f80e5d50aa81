"""Debug runs of targets whose family has no entry: tiny models with every kind of layer of the target."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from distill.debug import begin_debug
from distill.recipe.recipe import load_recipe, save_recipe
from tests.distill.recipe_files import tiny_recipe

SHRINKS = (
    "gpt_oss",
    "granitemoehybrid",
    "deepseek_v3",
    "falcon_h1",
    "lfm2",
    "qwen3_next",
    "gemma3n",
    "gemma4",
    "qwen3_5",
)
GRANITE = {
    "num_hidden_layers": 40,
    "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
}  # as Granite 4.0 has them


def begin(folder, model_type: str, **architecture):
    """Begin the debug run of a recipe whose target is as large as transformers' default of a family."""
    (folder / "target").mkdir()
    config = CONFIG_MAPPING[model_type](**GRANITE if model_type == "granitemoehybrid" else {})
    (folder / "target" / "config.json").write_text(json.dumps(config.to_dict()))
    wanted = {"layers": 2, "method": "first_last"} | architecture
    recipe = tiny_recipe(folder / "run", folder / "target", wanted, {"self_written_prompts": 9})
    save_recipe(recipe, folder / "demo.yaml")
    return begin_debug(folder / "demo.yaml", []).parent, config.get_text_config(decoder=True)


@pytest.mark.parametrize("model_type", SHRINKS)
def test_a_tiny_target_has_all_kinds_of_layers(model_type, tmp_path):
    run, whole = begin(tmp_path, model_type)
    model = AutoModelForCausalLM.from_pretrained(run / "tiny-target")
    assert (model.config.model_type, model.config.num_hidden_layers) == (whole.model_type, 4)
    assert model.num_parameters() < 1_500_000
    assert {*getattr(model.config, "layer_types", ())} == {*getattr(whole, "layer_types", ())}
    logits = model(input_ids=torch.tensor([[1, 70, 80, 90]])).logits
    assert logits.isfinite().all()
    assert load_recipe(run / "recipe.yaml").architecture.layers == 2


def test_the_source_of_the_draft_may_be_of_another_family(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG_MAPPING["qwen3"]().to_dict()))
    run, _ = begin(tmp_path, "qwen3_moe", source=str(source), hidden=1024)
    assert json.loads((run / "tiny-source/config.json").read_text())["model_type"] == "qwen3"
    assert json.loads((run / "tiny-target/config.json").read_text())["model_type"] == "qwen3_moe"
    small = load_recipe(run / "recipe.yaml").architecture
    assert (small.source, small.layers) == (str(run / "tiny-source"), 2)
    assert 0 < (small.hidden or 0) < 1024

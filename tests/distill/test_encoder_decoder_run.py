"""A whole run of an encoder-decoder target: every stage real, and a scorecard at the end; and its debug form."""

import json

import pytest

import widedraft
from eval.scorecard_schema import CARD_NAME
from tests.distill.recipe_files import write_recipe

pytestmark = pytest.mark.slow

SETTINGS = """
data: {{prompts: [{{path: {prompts}}}], num_eval_prompts: 4, max_new_tokens: 8, max_seq_len: 128}}
distill: {{max_duration: 1ep, global_train_batch_size: 4, precision: fp32, scheduler: {{t_warmup: 1ba}}}}
eval:
  {{num_prompts: 2, max_new_tokens: 8, num_speculative_tokens: [1, 2], latency_repeats: 2, wall_clock_prompts: 2,
    latency_batch_sizes: [1], dtype: float32}}
"""


@pytest.fixture
def recipe(make_translator, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some words that are read. " * 40)
    cut = f"layers: 1, encoder_layers: 2, method: block_influence, calibration: {{text: {text}, tokens: 64}}"
    return write_recipe(tmp_path, make_translator(tied=False, gated=True), f"{{{cut}}}", SETTINGS)


def test_a_run_ends_in_a_scorecard(recipe, training_here, tmp_path):
    assert widedraft.main(["run", str(recipe)]) == 0
    card = json.loads((tmp_path / "run" / "eval" / CARD_NAME).read_text())
    assert [card["target"]["layers"], card["target"]["model_type"]] == [4, "t5"]
    assert {draft["layers"] for draft in card["drafts"]} == {1}


def test_a_debug_run_is_one_of_its_family(recipe, tmp_path):
    assert widedraft.main(["prune", str(recipe), "--debug"]) == 0
    config = json.loads((tmp_path / "run-debug" / "tiny-target" / "config.json").read_text())
    assert config["model_type"] == "t5"
    assert json.loads((tmp_path / "run-debug" / "init" / "config.json").read_text())["model_type"] == "t5"

"""What a family cannot be given is refused by check and by every stage, and by nothing else: one table for all."""

from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType

import pytest

from architectures.families import FAMILIES
from distill.check import check_recipe
from distill.recipe.recipe import Recipe
from distill.recipe.validate import FEATURES, reject_unfit
from distill.run import Run
from tests.distill.recipe_files import tiny_recipe, write_prompts
from tests.families import DECODER_ONLY, ENCODER_DECODER
from tests.rejections import rejects

ROOT = Path(__file__).parents[3]
RESPONSEED = {"prompts": [{"path": "prompts.jsonl"}], "num_eval_prompts": 2}
ASKS = MappingProxyType(  # feature -> sections that ask for it
    {
        "merge": {"architecture": {"layers": 2, "method": "merge"}},
        "learned_masks": {"architecture": {"layers": 2, "method": "learned_masks"}, "text": {}},
        "vocabulary": {"architecture": {"layers": 2, "vocabulary": {"size": 64, "from": "responses"}}},
        "stages": {"architecture": {"stages": [3, 2]}},
        "packing": {"distill": {"packing": True}},
        "text": {"distill": {"train_on": "text", "max_duration": "9ba"}, "text": {}},
        "self_written_prompts": {"data": {**RESPONSEED, "self_written_prompts": 4}},
        "generation engine": {"generate": {"engine": "endpoint", "urls": ["http://a"]}},
        "sharded teacher": {
            "distill": {"teacher": {"source": "live", "parallelism": "fsdp2"}, "device_train_microbatch_size": 1}
        },
        "fsdp2": {"distill": {"parallelism": "fsdp2", "device_train_microbatch_size": 1}},
    }
)


def recipe_of(folder: Path, target: Path, sections: dict[str, dict[str, object]]) -> Recipe:
    prompts, text = write_prompts(folder, 9), folder / "text.txt"
    text.write_text("some words. " * 400)
    data = {**RESPONSEED, **sections.get("data", {}), "prompts": [{"path": str(prompts)}]}
    words = {"text": {"domains": ({"name": "all", "path": str(text)},)}} if "text" in sections else {}
    calibration = {"text": str(text), "tokens": 64}
    architecture = {"layers": 2, **sections.get("architecture", {})}
    if architecture.get("method") != "learned_masks":
        architecture["calibration"] = calibration
    if "stages" in architecture:
        del architecture["layers"]
    rest = {name: sections.get(name, {}) for name in ("distill", "generate")}
    return tiny_recipe(folder / "run", target, architecture, data, **rest, eval={"num_prompts": 2}, **words)


@pytest.mark.parametrize("feature", ASKS)
@pytest.mark.parametrize("family", ENCODER_DECODER)
def test_what_a_family_cannot_be_given_is_refused_before_anything_is_computed(
    feature, family, make_translator, tmp_path
):
    recipe = recipe_of(tmp_path, make_translator(), ASKS[feature])
    named = FEATURES[feature][0], family, FAMILIES[family].unsupported[feature]
    with rejects(*named):
        check_recipe(recipe)
    with rejects(*named):
        Run.of(recipe).begin()


@pytest.mark.parametrize("feature", ASKS)
def test_the_same_is_given_to_others(feature, tiny_target, tmp_path):
    recipe = recipe_of(tmp_path, tiny_target, ASKS[feature])
    for name, family in DECODER_ONLY.items():
        with rejects(name) if feature in family.unsupported else nullcontext():
            reject_unfit(recipe, name)


def test_a_plain_recipe_is_refused_nothing(make_translator, tmp_path):
    recipe = recipe_of(tmp_path, make_translator(), {})
    check_recipe(recipe)
    Run.of(recipe).begin()


def test_every_refusal_is_asked_for_and_told_on_the_page():
    page = (ROOT / "docs" / "prune.md").read_text(encoding="utf-8")
    assert FEATURES.keys() == ASKS.keys()
    for family in ENCODER_DECODER.values():
        assert family.unsupported.keys() == FEATURES.keys() | {"choose"}
    for key, _ in FEATURES.values():
        assert f"`{key}`" in page, key

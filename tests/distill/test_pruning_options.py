"""Every option of pruning with both kinds of family: it works, or it is refused with the reason."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from architectures.errors import UserError
from architectures.hub import read_config
from architectures.pruning.plan import PLAN_NAME, PruningPlan
from architectures.shapes import Shape
from distill.check import Row, check_recipe
from distill.pipeline import prune_stage
from distill.recipe.recipe import Recipe
from distill.run import Run
from tests.distill.recipe_files import tiny_recipe, write_prompts
from tests.rejections import rejects

SIZES = {"gpt2": {"n_layer": 4, "n_head": 4, "n_embd": 64, "n_inner": 96}}  # as every tiny checkpoint
TRIED = ("llama", "gpt2")  # every family is cut in tests/architectures/pruning/test_prune_families.py
CLASSIC = ("gpt2",)
DEPTH = ("first_last", "evenly_spaced", "random", "block_influence", "greedy", "merge")
WIDTH = ("activation", "flap", "magnitude", "random")
LAYERS_ALONE = "gpt2"  # names the family whose layers only can be pruned
EVERYTHING = {"layers": 2, "intermediate": 64, "heads": 2, "kv_heads": 1, "hidden": 32}

# option -> (section architecture, why all families refuse it, why CLASSIC do); None where it works
WORKS = (None, None)
OPTIONS: dict[str, tuple[Mapping[str, object], str | None, str | None]] = {
    **{f"layers by {method}": ({"layers": 2, "method": method}, *WORKS) for method in DEPTH},
    "one layer": ({"layers": 1, "method": "first_last"}, *WORKS),
    **{
        f"neurons and heads by {method}": (
            {"intermediate": 64, "heads": 2, "width_method": method},
            None,
            LAYERS_ALONE,
        )
        for method in WIDTH
    },
    **{
        f"channels by {method}": ({"hidden": 32, "width_method": method}, None, LAYERS_ALONE)
        for method in WIDTH
        if method != "flap"
    },
    "channels by flap": ({"hidden": 32, "width_method": "flap"}, "hidden", None),
    "everything": (EVERYTHING, None, LAYERS_ALONE),
    "more layers": ({"layers": 5}, "layers 5", None),
    "a named shape": ({"shape": "wide-1.3b"}, "128", None),
    "no layer": ({"layers": 0}, "architecture.layers", None),
    "two shapes": ({"layers": 2, "shape": "wide-1.3b"}, "shape", None),
}


@pytest.fixture(scope="module")
def targets(make_checkpoint) -> Callable[[str], Path]:
    """targets(family) -> its checkpoint, made once."""
    return cache(lambda family: make_checkpoint(model_type=family, **SIZES.get(family, {})))


@pytest.fixture(scope="module")
def scores(tmp_path_factory) -> Path:
    """Scores of a target, shared by its cells."""
    return tmp_path_factory.mktemp("scores")


@pytest.fixture
def recipe_of(tmp_path, scores) -> Callable[..., Recipe]:
    """A recipe of a target and a section architecture, with enough text to calibrate on."""
    data = {"prompts": [{"path": str(write_prompts(tmp_path))}], "num_eval_prompts": 2}
    text = scores / "text.txt"
    text.write_text("What comes after this? " * 20)

    def make(target: Path, **architecture) -> Recipe:
        if "plan" not in architecture and architecture.get("method") != "learned_masks":
            calibration = {"text": str(text), "tokens": 64}
            architecture |= {"scores": str(scores / target.name), "calibration": calibration}
        return tiny_recipe(tmp_path / "run", target, architecture, data)

    return make


def logits(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
        return model(torch.arange(3, 35)[None], use_cache=False).logits


def pruned(recipe: Recipe) -> tuple[Path, PruningPlan]:
    prune_stage(Run.of(recipe))
    init = Path(recipe.run_dir) / "init"
    return init, PruningPlan.from_json((init / PLAN_NAME).read_text())


@pytest.mark.parametrize("family", TRIED)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_works_or_is_refused(targets, recipe_of, option, family):
    target, (architecture, for_all, for_classic) = targets(family), OPTIONS[option]
    why = for_all or (for_classic if family in CLASSIC else None)
    if why is not None:
        with rejects(why, error=(UserError, ValidationError)):
            check_recipe(recipe_of(target, **architecture))
        with rejects(why, error=(UserError, ValidationError)):
            prune_stage(Run.of(recipe_of(target, **architecture)))
        return
    recipe = recipe_of(target, **architecture)
    check_recipe(recipe)
    init, plan = pruned(recipe)
    assert Shape.from_config(read_config(init)) == plan.draft
    wanted = {
        name: architecture[name] for name in ("layers", "intermediate", "heads", "hidden") if name in architecture
    }
    assert {name: getattr(plan.draft, name) for name in wanted} == wanted
    assert logits(init).isfinite().all()


@pytest.mark.parametrize("family", TRIED)
def test_a_plan_and_a_source_serve_every_family(targets, recipe_of, tmp_path, family):
    target = targets(family)
    first, plan = pruned(recipe_of(target, layers=3, method="evenly_spaced"))
    moved = first.rename(tmp_path / "earlier")
    again, same = pruned(recipe_of(target, plan=str(moved / PLAN_NAME)))
    assert same == plan
    assert torch.equal(logits(again), logits(moved))
    _, shorter = pruned(recipe_of(target, source=str(moved), layers=2, method="first_last"))
    assert (shorter.source.layers, shorter.source_layers) == (3, (0, 2))


@pytest.mark.parametrize("family", TRIED)
def test_stages_are_a_cut_of_the_stage_before(targets, recipe_of, family):
    recipe = recipe_of(targets(family), stages=[3, 2], method="first_last")
    assert Row("pruned by", "first_last, in stages of 3, 2 layers") in check_recipe(recipe)
    with rejects("stage-3/draft", "widedraft run RECIPE"):
        prune_stage(Run.of(recipe))

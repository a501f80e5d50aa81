"""A draft is cut out of a target that is not whole in memory: scores, plan and weights are the whole one's."""

from pathlib import Path

import pytest

from distill.check import check_recipe
from distill.pipeline import prune_stage
from distill.run import Run
from tests.eval.targets.conftest import _same_kernels  # noqa: F401  # a fixture of every test
from tests.rejections import rejects
from tests.sharing import by_processes

pytestmark = pytest.mark.usefixtures("no_gpu")
WHOLE, LAYERS = {}, {"placement": "layers"}
SPREAD = {"placement": "spread", "device_memory_gib": 0.00045}  # two of four layers, and the embedding
NARROW = {"layers": 2, "intermediate": 96, "heads": 2}


def made(folder: Path) -> dict[str, bytes]:
    """What a run's stage wrote, but for what tells when and where."""
    told = {"manifest.json", "recipe.yaml"}
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name not in told}


@pytest.mark.parametrize("width_method", ["activation", "flap", "magnitude"])
def test_the_draft_and_the_scores_have_the_bytes_of_the_whole_targets(make_recipe, tmp_path, width_method):
    hidden = {} if width_method == "flap" else {"hidden": 48}  # flap has no scores of channels
    wanted = {**NARROW, **hidden, "method": "block_influence", "width_method": width_method}
    for name, target in {"whole": WHOLE, "layers": LAYERS, "spread": SPREAD}.items():
        prune_stage(Run.of(make_recipe(name, target, **wanted)))
    whole = made(tmp_path / "whole")
    assert {"scores/scores.safetensors", "init/model.safetensors", "init/plan.json"} <= whole.keys()
    assert made(tmp_path / "layers") == whole == made(tmp_path / "spread")


def test_several_processes_leave_it_to_the_first(make_recipe, tmp_path):
    wanted = {**NARROW, "method": "block_influence"}
    prune_stage(Run.of(make_recipe("alone", LAYERS, **wanted)))
    by_processes(2, lambda share: prune_stage(Run.of(make_recipe("two", LAYERS, **wanted), share)))
    assert made(tmp_path / "two") == made(tmp_path / "alone")


def test_a_target_half_on_the_disk_loses_its_layers_in_the_same_order(make_recipe, tmp_path):
    for name, target in {"whole": WHOLE, "spread": SPREAD}.items():
        prune_stage(Run.of(make_recipe(name, target, layers=2, method="greedy")))
    assert made(tmp_path / "spread") == made(tmp_path / "whole")


@pytest.mark.parametrize(
    ("target", "method", "named"),
    [
        (LAYERS, "greedy", ("target.placement", "layers", "architecture.method greedy")),
        (LAYERS, "merge", ("target.placement", "layers", "architecture.method merge")),
        (SPREAD, "merge", ("target.placement", "spread", "architecture.method merge")),
    ],
)
def test_orders_that_need_all_weights_are_refused_and_told_by_check(make_recipe, tmp_path, target, method, named):
    recipe = make_recipe("refused", target, layers=2, method=method)
    with rejects(*named):
        check_recipe(recipe)
    with rejects(*named, "block_influence"):
        prune_stage(Run.of(recipe))
    assert not (tmp_path / "refused" / "init").exists()


def test_an_order_that_was_found_elsewhere_serves(make_recipe, tmp_path):
    scores = str(tmp_path / "scores")
    prune_stage(Run.of(make_recipe("whole", WHOLE, layers=2, method="merge", scores=scores)))
    recipe = make_recipe("layers", LAYERS, layers=2, method="merge", scores=scores)
    check_recipe(recipe)
    prune_stage(Run.of(recipe))
    assert made(tmp_path / "layers") == made(tmp_path / "whole")

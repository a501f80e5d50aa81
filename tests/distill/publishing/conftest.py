"""Finished runs of a tiny target: one whose draft says every id, one with a small head and policies."""

import shutil
from pathlib import Path

import pytest

from architectures.hub import read_config
from architectures.manifest import write_manifest
from architectures.pruning.plan import plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from architectures.shapes import Shape
from distill.hub.publish import dry_run
from distill.hub.push import PushSettings
from distill.recipe.recipe import Recipe, save_recipe
from eval.config import EvalConfig
from eval.prompts import Prompt
from eval.scorecard import score_drafts

BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
SAID = tuple(id_ for id_ in range(264) if id_ % 7 or id_ == 0)
SCORING = EvalConfig(
    max_new_tokens=16,
    num_speculative_tokens=(1, 2, 3),
    batch_size=4,
    latency_repeats=3,
    latency_batch_sizes=(1, 2),
    wall_clock_prompts=3,
)
PROMPTS = [
    Prompt(f"{name}.jsonl:{place}", ({"role": "user", "content": text},))
    for name, place, text in (("p", 1, "<b>why</b>"), ("p", 2, "how"), ("q", 1, "2+2"), ("q", 2, "x & y"))
]


@pytest.fixture(autouse=True)
def _quick(pictures_left_out: None) -> None:
    """A report is laid out for every dry run."""


@pytest.fixture(scope="session")
def published_target(make_checkpoint, with_merges):
    return with_merges(make_checkpoint(seed=1, pad_token_id=2))


@pytest.fixture(scope="session")
def finished(published_target, tmp_path_factory):
    """finished[name] -> the folder of a run, `whole` or `small`; not to be changed."""
    place = tmp_path_factory.mktemp("published")
    return {name: finish_run(place / name, published_target, ids) for name, ids in (("whole", None), ("small", SAID))}


def finish_run(run: Path, target: Path, ids: tuple[int, ...] | None) -> Path:
    """A run as its stages leave it."""
    small = {} if ids is None else {"vocabulary": {"size": len(ids), "from": "responses"}}
    recipe = Recipe(
        run_name=run.name,
        run_dir=str(run),
        target={"path": str(target), "dtype": "float32"},
        architecture={"layers": 2, "method": "first_last", **small},
        data={"prompts": [{"name": "openai/gsm8k", "config": "main"}]},
    )
    save_recipe(recipe, run / "recipe.yaml")
    plan = plan_pruning(Shape.from_config(read_config(target)), ArchitectureConfig(layers=2, method="first_last"))
    prune_checkpoint(target, plan if ids is None else plan.with_vocabulary(ids), run / "draft")
    write_manifest(run / "draft", stage="export", inputs={}, finished=True, checkpoint="latest-rank0.pt")
    (run / "data").mkdir()
    counts = {"prompts": 5, "train": {"responses": 5, "response_tokens": 1234, "longest": 99}}
    write_manifest(run / "data", stage="generate", inputs={}, counts=counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eval.scorecard.CONFIDENCE", 0.75)  # the prompts are few
        score_drafts(target, {"draft": run / "draft"}, PROMPTS, SCORING, run / "eval", seed=17)
    return run


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the run with a whole head, to be changed."""
    return Path(shutil.copytree(finished["whole"], tmp_path / "run"))


def write_dry(run: Path, out: Path, **settings) -> list[Path]:
    """What a dry run of a push writes."""
    return dry_run(
        PushSettings(run=run, **{"repo_id": "org/draft", "base_model": BASE, "license": "apache-2.0", **settings}), out
    )

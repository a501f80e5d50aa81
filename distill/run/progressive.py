"""Progressive cuts: `architecture.stages: [16, 8, 5]` is a run for each stage, each cut out of the one before.

Every stage but the last is a run of its own in <run>/stage-N, with a recipe of its own: depth alone, cut from the draft
of the stage before, taught by the target on the answers in <run>/data. The last stage is the run itself.

Source of the schedule: Sreenivas et al. 2024, "LLM Pruning and Distillation in Practice" (arXiv 2408.11796); pruning by
more than half pays in several rounds with distillation between.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from architectures.targets.target import is_gguf
from distill.recipe.recipe import Recipe
from distill.recipe.teacher import Cache
from distill.run.stage_inputs import stage_folder


def earlier_stages(recipe: Recipe) -> Iterator[Recipe]:
    """The recipe of every stage before the last, in order."""
    source = recipe.architecture.source
    for layers in (recipe.architecture.stages or [])[:-1]:
        yield stage_recipe(recipe, layers, source)
        source = str(stage_folder(recipe, layers) / "draft")


def stage_recipe(recipe: Recipe, layers: int, source: str | None) -> Recipe:
    """The recipe of one stage: so many layers of what the stage before made, at the target's widths."""
    wanted = recipe.architecture.model_copy(
        update={
            **dict.fromkeys(("shape", "hidden", "intermediate", "heads", "kv_heads", "stages", "scores")),
            "layers": layers,
            "source": source,
            "source_revision": recipe.architecture.source_revision if source == recipe.architecture.source else "main",
        }
    )
    names = {"run_name": f"{recipe.run_name}-stage-{layers}", "run_dir": str(stage_folder(recipe, layers))}
    target = recipe.target
    if is_gguf(target.path):
        target = target.model_copy(update={"path": str(Path(recipe.run_dir) / "target")})  # imported once
    return recipe.model_copy(update={**names, "architecture": wanted, "target": target})


def share_answers(recipe: Recipe, stage: Recipe) -> None:
    """Let a stage train on the answers of the run it belongs to, and on a cached teacher's words about them."""
    names = ["data", "teacher_cache"] if isinstance(recipe.distill.teacher, Cache) else ["data"]
    for name in names:
        link = Path(stage.run_dir) / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink() and not link.exists():  # a cache may be made later
            link.symlink_to(os.path.relpath(Path(recipe.run_dir) / name, link.parent))

"""Progressive cuts: `architecture.stages: [16, 8, 5]` is a run for each stage, each cut out of the one before.

Every stage but the last is a run of its own in <run>/stage-N, with a recipe of its own: depth alone, cut from the draft
of the stage before, taught by the target on the answers in <run>/data. The last stage is the run itself.

Source of the schedule: Sreenivas et al. 2024, "LLM Pruning and Distillation in Practice" (arXiv 2408.11796); pruning by
more than half pays in several rounds with distillation between.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from architectures.errors import UserError
from architectures.settings.recipe_command import command_of
from architectures.targets.target import is_gguf, resolve_checkpoint
from distill.recipe.recipe import Recipe
from distill.run.artifact import Artifact
from distill.run.run import Run


def earlier_stages(run: Run) -> Iterator[Run]:
    """The run of every stage before the last, in order."""
    source = run.recipe.architecture.source
    for layers in (run.recipe.architecture.stages or [])[:-1]:
        stage = Run.of(stage_recipe(run, layers, source), run.share)
        yield stage
        source = str(stage.draft.path)


def stage_run(run: Run, layers: int) -> Run:
    """The run of a stage that was begun before, as far as its folders tell."""
    return Run(run.recipe, run.folder / f"stage-{layers}", run.share)


def stage_recipe(run: Run, layers: int, source: str | None) -> Recipe:
    """The recipe of one stage: so many layers of what the stage before made, at the target's widths."""
    recipe = run.recipe
    wanted = recipe.architecture.model_copy(
        update={
            **dict.fromkeys(("shape", "hidden", "intermediate", "heads", "kv_heads", "stages", "scores")),
            "layers": layers,
            "source": source,
        }
    )
    names = {"run_name": f"{recipe.run_name}-stage-{layers}", "run_dir": str(stage_run(run, layers).folder)}
    return with_imported_target(recipe.model_copy(update={**names, "architecture": wanted}), run)


def with_imported_target(recipe: Recipe, run: Run) -> Recipe:
    """A recipe whose target is the folder that a run imports its GGUF file to, so that it is imported once."""
    if not is_gguf(recipe.target.path):
        return recipe
    return recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": str(run.imported_target)})})


def share_answers(run: Run, stage: Run) -> None:
    """Let a stage train on the answers of the run it belongs to, and on a cached teacher's outputs for them."""
    shared = {stage.data: run.data}
    if run.recipe.distill.teacher.is_cache:
        shared[stage.teacher_cache] = run.teacher_cache
    for link, artifact in shared.items():
        link.path.parent.mkdir(parents=True, exist_ok=True)
        if not link.path.is_symlink() and not link.path.exists():  # a cache may be made later
            link.path.symlink_to(os.path.relpath(artifact.path, link.path.parent))


def first_init(run: Run) -> Artifact:
    """The init whose output head every later one of a run keeps."""
    stages = run.recipe.architecture.stages
    return (run if stages is None else stage_run(run, stages[0])).init


def cut_from(run: Run) -> Path:
    """The checkpoint whose weights become the draft's: the target, architecture.source, or the stage before the last.

    Raises:
        UserError: If that stage has not finished, or there is no such checkpoint.
    """
    stages = run.recipe.architecture.stages
    if stages is not None:
        draft = stage_run(run, stages[-2]).draft
        if not (draft.manifest or {}).get("finished"):
            raise UserError(f"{draft.path}: not finished. {command_of('run')} makes one stage after another.")
        return draft.path
    return source_folder(run.recipe) or run.target


def source_folder(recipe: Recipe) -> Path | None:
    """The folder of architecture.source at its revision, fetched if need be; None where the recipe names none."""
    source = recipe.architecture.source_at
    return None if source is None else resolve_checkpoint(source[0], revision=source[1])

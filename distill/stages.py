"""The stages of a run: what each reads, what it writes, and when it may be skipped.

A stage is finished when its folder holds a manifest.json; it is current when that manifest records the inputs the
recipe asks for today. `run_all` goes through them in order, so an interrupted run continues where it stopped.
Heavy imports happen inside the stages: `widedraft check` and `--help` never pay for them.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from architectures.errors import UserError
from architectures.manifest import (
    changed_inputs,
    fingerprint_checkpoint,
    fingerprint_file,
    fingerprint_value,
    read_manifest,
    write_manifest,
)
from architectures.target import resolve_checkpoint
from distill.recipe import Recipe, load_recipe, save_recipe
from eval.config import PromptSource

if TYPE_CHECKING:
    from eval.tasks import Prompt

RESUMABLE_KEYS = frozenset(  # a continued training may change these
    (
        "max_duration",
        "device_train_microbatch_size",
        "device_eval_batch_size",
        "eval_interval",
        "eval_first",
        "save_interval",
        "save_num_checkpoints_to_keep",
        "autoresume",
        "parallelism",
        "loggers",
        "progress_bar",
        "console_log_interval",
    )
)


def run_all(recipe_path: Path, overrides: Sequence[str]) -> None:
    """Prune, generate, distil, export and score; skip what is current; end with the scorecard's headline."""
    recipe = load_recipe(recipe_path, overrides)
    timed("prune", lambda: prune_stage(recipe))
    timed("generate", lambda: generate_stage(recipe))
    timed("distill", lambda: distill_stage(recipe_path, overrides))
    timed("eval", lambda: eval_stage(recipe))
    print_outcome(recipe)


def timed(name: str, stage: Callable[[], None]) -> None:
    """Run one stage and say how long it took."""
    print(f"== {name}", flush=True)
    start_s = time.monotonic()
    stage()
    print(f"   {name} took {time.monotonic() - start_s:.0f} s", flush=True)


def print_outcome(recipe: Recipe) -> None:
    """Say where the draft and the scorecard are, and what the scorecard says first."""
    import json

    from eval.scorecard import headline

    run = Path(recipe.run_dir)
    scorecard = json.loads((run / "eval" / "scorecard.json").read_text(encoding="utf-8"))
    print(f"\ndraft:     {run / 'draft'}\nscorecard: {run / 'eval' / 'scorecard.md'}\n\n{headline(scorecard)}")


def prune_stage(recipe: Recipe) -> None:
    """Cut <run>/init out of the target."""
    from architectures.plan import plan_pruning
    from architectures.prune import prune_checkpoint
    from architectures.shapes import Shape
    from architectures.target import read_config

    init = Path(recipe.run_dir) / "init"
    target = begin_stage(recipe)
    inputs = prune_inputs(recipe, target)
    if is_current(init, inputs):
        return
    refuse_orphaned_training(recipe, init)
    plan = plan_pruning(Shape.from_config(read_config(target)), recipe.architecture)

    def finish(folder: Path) -> None:
        write_manifest(folder, stage="prune", inputs=inputs, target=target_record(recipe), recipe=recipe_hash(recipe))

    prune_checkpoint(target, plan, init, dtype=recipe.target.dtype, finish=finish)
    print(f"   {init}: layers {', '.join(map(str, plan.source_layers))} of {plan.source.layers}")


def generate_stage(recipe: Recipe) -> None:
    """Let the target answer the prompts, into <run>/data."""
    from distill.generate import generate_answers

    data = Path(recipe.run_dir) / "data"
    target = begin_stage(recipe)
    inputs = generate_inputs(recipe, target)
    if is_current(data, inputs):
        return
    counts = generate_answers(target, recipe.data, data, seed=recipe.seed, dtype=recipe.target.dtype)
    write_manifest(
        data, stage="generate", inputs=inputs, counts=counts, target=target_record(recipe), recipe=recipe_hash(recipe)
    )
    print(f"   {data}: {counts}")


def distill_stage(recipe_path: Path, overrides: Sequence[str]) -> None:
    """Train <run>/checkpoints and export <run>/draft, on every GPU of this machine or on its processor."""
    recipe = load_recipe(recipe_path, overrides)
    training = require_training_inputs(recipe)
    draft = read_manifest(Path(recipe.run_dir) / "draft")
    wanted = draft_inputs(recipe, training)
    if draft is not None and draft["finished"] and not changed_inputs(draft, wanted):
        print(f"   {Path(recipe.run_dir) / 'draft'}: up to date")
        return
    completed = subprocess.run(training_command(recipe_path, overrides), env=training_environment(), check=False)
    if completed.returncode != 0:
        sys.exit(completed.returncode)  # the training process has said why


def export_stage(recipe: Recipe) -> None:
    """Make <run>/draft from the newest intact checkpoint, whether or not its training has finished."""
    from distill.checkpoints import newest_intact_checkpoint
    from distill.export import export_checkpoint

    run = Path(recipe.run_dir)
    checkpoint = newest_intact_checkpoint(run / "checkpoints")
    if checkpoint is None:
        raise UserError(f"{run / 'checkpoints'}: no checkpoint to export. Run `widedraft distill` first.")

    def finish(folder: Path) -> None:
        write_draft_manifest(recipe, folder, checkpoint=checkpoint.name, finished=False)

    export_checkpoint(checkpoint, run / "init", run / "draft", dtype=recipe.export.dtype, finish=finish)
    print(f"   {run / 'draft'}: from {checkpoint}")


def eval_stage(recipe: Recipe) -> None:
    """Score <run>/draft and the undistilled <run>/init against the target, into <run>/eval."""
    from eval.scorecard import score_drafts

    run = Path(recipe.run_dir)
    target = begin_stage(recipe)
    for name, command in (("init", "prune"), ("draft", "distill")):
        require_finished(run / name, command)
    inputs = eval_inputs(recipe, target)
    if is_current(run / "eval", inputs):
        return
    if read_manifest(run / "eval") is not None:
        shutil.rmtree(run / "eval")  # a finished scorecard of other inputs; scoring costs minutes, not hours
    drafts = {"undistilled": run / "init", "draft": run / "draft"}
    score_drafts(target, drafts, eval_prompts(recipe), recipe.eval, run / "eval", seed=recipe.seed)
    write_manifest(run / "eval", stage="eval", inputs=inputs, recipe=recipe_hash(recipe))


def begin_stage(recipe: Recipe) -> Path:
    """Save the resolved recipe in its run folder and return the target's folder."""
    save_recipe(recipe, Path(recipe.run_dir) / "recipe.yaml")
    return resolve_checkpoint(
        recipe.target.path, revision=recipe.target.revision, cache=Path(recipe.run_dir) / "target"
    )


def is_current(folder: Path, inputs: dict[str, str]) -> bool:
    """Whether the folder is finished and made from these inputs; says so, or says what changed."""
    manifest = read_manifest(folder)
    if manifest is None:
        return False
    changed = changed_inputs(manifest, inputs)
    print(f"   {folder}: {'changed: ' + ', '.join(changed) if changed else 'up to date'}", flush=True)
    return not changed


def require_finished(folder: Path, command: str) -> None:
    """Refuse to go on without the folder that an earlier stage makes."""
    if read_manifest(folder) is None:
        raise UserError(f"{folder}: not there yet. Run `widedraft {command} RECIPE` first, or `widedraft run RECIPE`.")


def require_training_inputs(recipe: Recipe) -> dict[str, str]:
    """Check that init, data and any earlier checkpoints are what this recipe asks for; return their fingerprints.

    Raises:
        UserError: If a stage is missing, or its folder was made from other inputs than the recipe now names.
    """
    run = Path(recipe.run_dir)
    target = resolve_checkpoint(recipe.target.path, revision=recipe.target.revision, cache=run / "target")
    for name, command, inputs in (
        ("init", "prune", prune_inputs(recipe, target)),
        ("data", "generate", generate_inputs(recipe, target)),
    ):
        require_finished(run / name, command)
        refuse_changed(run / name, inputs)
    training = training_inputs(recipe)
    if read_manifest(run / "checkpoints") is not None:
        refuse_changed(run / "checkpoints", training)
    return training


def refuse_changed(folder: Path, inputs: dict[str, str]) -> None:
    """Raise UserError naming each input in which the folder differs from the recipe."""
    changed = changed_inputs(read_manifest(folder) or {"inputs": {}}, inputs)
    if changed:
        raise UserError(
            f"{folder} was made from another {', '.join(changed)} than the recipe now asks for. "
            f"Choose another run_name, or delete {folder} and what was made from it."
        )


def refuse_orphaned_training(recipe: Recipe, init: Path) -> None:
    """Refuse to replace an init that checkpoints were trained from."""
    if read_manifest(init) is not None and read_manifest(Path(recipe.run_dir) / "checkpoints") is not None:
        raise UserError(
            f"{init} would change, but {Path(recipe.run_dir) / 'checkpoints'} was trained from it. "
            f"Choose another run_name, or delete {recipe.run_dir}."
        )


def begin_training(recipe: Recipe) -> None:
    """Record in <run>/checkpoints what this training starts from. Call on rank 0 only."""
    write_manifest(
        Path(recipe.run_dir) / "checkpoints",
        stage="distill",
        inputs=training_inputs(recipe),
        recipe=recipe_hash(recipe),
        seed=recipe.seed,
    )


def write_draft_manifest(recipe: Recipe, folder: Path, *, checkpoint: str, finished: bool) -> None:
    """Write the manifest of a draft folder: target and revision, recipe, versions, the checkpoint it came from."""
    write_manifest(
        folder,
        stage="export",
        inputs=draft_inputs(recipe, training_inputs(recipe)),
        finished=finished,
        checkpoint=checkpoint,
        target=target_record(recipe),
        recipe=recipe_hash(recipe),
        seed=recipe.seed,
    )


def prune_inputs(recipe: Recipe, target: Path) -> dict[str, str]:
    """What init is made from."""
    return {
        "target": fingerprint_checkpoint(target),
        "target.dtype": recipe.target.dtype,
        "architecture": fingerprint_value(recipe.architecture.model_dump(mode="json")),
    }


def generate_inputs(recipe: Recipe, target: Path) -> dict[str, str]:
    """What the answers are made from."""
    return {
        "target": fingerprint_checkpoint(target),
        "target.dtype": recipe.target.dtype,
        "data": fingerprint_value(recipe.data.model_dump(mode="json")),
        "prompts": fingerprint_sources(recipe.data.prompts),
        "seed": str(recipe.seed),
    }


def training_inputs(recipe: Recipe) -> dict[str, str]:
    """What the checkpoints are made from; keys that a continued training may change are left out."""
    run = Path(recipe.run_dir)
    settings = recipe.distill.model_dump(mode="json", exclude=set(RESUMABLE_KEYS))
    return {
        "init": fingerprint_checkpoint(run / "init"),
        "data": fingerprint_value((read_manifest(run / "data") or {}).get("inputs")),
        "distill": fingerprint_value(settings),
        "seed": str(recipe.seed),
    }


def draft_inputs(recipe: Recipe, training: dict[str, str]) -> dict[str, str]:
    """What the finished draft is made from."""
    return {**training, "distill.max_duration": recipe.distill.max_duration, "export.dtype": recipe.export.dtype}


def eval_inputs(recipe: Recipe, target: Path) -> dict[str, str]:
    """What the scorecard is made from."""
    run = Path(recipe.run_dir)
    return {
        "target": fingerprint_checkpoint(target),
        "undistilled": fingerprint_checkpoint(run / "init"),
        "draft": fingerprint_checkpoint(run / "draft"),
        "eval": fingerprint_value(recipe.eval.model_dump(mode="json")),
        "prompts": fingerprint_sources(recipe.eval.tasks) if recipe.eval.tasks else training_inputs(recipe)["data"],
        "seed": str(recipe.seed),
    }


def fingerprint_sources(sources: Sequence[PromptSource]) -> str:
    """Content of prompt files and names of hub datasets, as one fingerprint."""
    parts: list[Any] = []
    for source in sources:
        is_file = source.path is not None and Path(source.path).is_file()
        parts.append([source.model_dump(mode="json"), fingerprint_file(Path(source.path)) if is_file else None])
    return fingerprint_value(parts)


def eval_prompts(recipe: Recipe) -> list["Prompt"]:
    """The prompts the recipe scores on: its tasks, or the held-out prompts of its data."""
    from eval.tasks import Prompt, load_prompts
    from eval.traces import read_traces

    if recipe.eval.tasks:
        return load_prompts(recipe.eval.tasks)
    held_out = read_traces(Path(recipe.run_dir) / "data", "eval")
    return [Prompt(source=trace.source, messages=tuple(trace.messages)) for trace in held_out]


def target_record(recipe: Recipe) -> dict[str, str]:
    """The target as a manifest names it."""
    return {"path": recipe.target.path, "revision": recipe.target.revision}


def recipe_hash(recipe: Recipe) -> str:
    """sha256 of the resolved recipe."""
    return fingerprint_value(recipe.model_dump(mode="json"))


def training_command(recipe_path: Path, overrides: Sequence[str]) -> list[str]:
    """The command that trains: one process per GPU through Composer's launcher, or one process."""
    import torch

    module = ["-m", "distill.train", str(recipe_path), *overrides]
    if torch.cuda.device_count() > 1:
        return [sys.executable, "-m", "composer", "-n", str(torch.cuda.device_count()), *module]
    return [sys.executable, *module]


def training_environment() -> dict[str, str]:
    """This environment, with the working folder off the import path: a user's own eval.py must not hide ours."""
    return {**os.environ, "PYTHONSAFEPATH": "1"}

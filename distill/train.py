"""The entry point of training: read this first.

    composer -n 8 -m distill.train RECIPE key=value ...

Reads <run>/init and <run>/data, and <run>/teacher_cache if the teacher is cached; writes <run>/checkpoints and
<run>/logs, and ends with the draft in <run>/draft. Run it again after an interruption to resume.

With `--debug` it trains a tiny version of the recipe in <run>-debug (distill/debug.py). With
`architecture.method: learned_masks`, masks are trained first, by the same command (distill/learned_masks.py).
"""

# ruff: noqa: E402  # Ctrl-C is handled from the first import on

from distill.process import report_user_errors, restore_interrupts, restore_signals, take_interrupts

if __name__ == "__main__":
    take_interrupts()

import argparse
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from composer import Trainer
from composer.utils import dist

restore_interrupts()  # Composer's import replaced the handler

from architectures.settings import read_settings
from distill.checkpoints.checkpoint_files import trust_checkpoints
from distill.checkpoints.folders import chosen_checkpoint
from distill.debug import begin_debug
from distill.export import export_draft
from distill.learned_masks import train_masks
from distill.recipe.recipe import Recipe, TrainSettings, load_recipe, require_profile_folder
from distill.response_batches import read_datasets
from distill.run import Run, owned_run
from distill.stage_inputs import begin_training, masks_are_due, require_training_inputs
from distill.trainer import build_model, build_trainer, init_distributed, newest_for_all, on_rank_0, use_resources


def main(argv: Sequence[str] | None = None) -> int:
    """Train the recipe of the command line; return the exit code of the process."""
    restore_signals()
    return report_user_errors(lambda: train_from_arguments(sys.argv[1:] if argv is None else argv))


def train_from_arguments(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="composer -n N -m distill.train", description="Distil a draft.", allow_abbrev=False
    )
    settings = read_settings(parser, TrainSettings, argv)
    if settings.trust_checkpoints:
        trust_checkpoints()
    if settings.profile is not None:
        require_profile_folder(settings.profile)
    recipe = (settings.recipe, settings.overrides)
    if settings.debug:
        recipe = (on_rank_0(lambda: begin_debug(*recipe)), ())
    train(load_recipe(*recipe), settings.profile)


def train(recipe: Recipe, profile: Path | None = None) -> None:
    """Distil <run>/init into <run>/draft; resumes from the newest checkpoint.

    Args:
        profile: Directory for rank 0's profile of a step; None for no profile.

    Raises:
        UserError: If inputs are missing or stale, the recipe does not fit this machine, no response can be learned, or
            another process works in the run.
    """
    run, is_rank_0 = Run.of(recipe), dist.get_global_rank() == 0
    with owned_run(run) if is_rank_0 else nullcontext():
        use_resources()
        init_distributed(recipe)

        # Learned masks are trained first; their training run ends here, and `prune` comes next.
        if masks_are_due(run):
            train_masks(run, profile)
            return

        # Inputs: init and data exist, match the recipe, and share the target's tokenizer.
        require_training_inputs(run)
        train_set, eval_set = read_datasets(run)

        # The teacher is part of the model, but neither checkpointed nor optimised with it.
        model = build_model(run, eval_tasks=eval_set.tasks)
        trainer = build_trainer(
            run,
            model,
            train_set=train_set,
            eval_set=eval_set,
            checkpoint=newest_for_all(run.checkpoints.path),
            profile=profile,
        )
        try:
            fit(run, trainer)
        finally:
            trainer.engine.close()  # completes logs and restores the terminal, also after an error

        # The end of training is always saved, so there is a checkpoint to export.
        if is_rank_0:
            chosen = chosen_checkpoint(run.checkpoints.path, recipe.export.checkpoint)
            assert chosen is not None
            export_draft(run, chosen, finished=True)
            print(f"{run.draft.path}: exported from {chosen}", file=sys.stderr)


def fit(run: Run, trainer: Trainer) -> None:
    """Train up to max_duration, with an evaluation before the first batch."""
    state, is_rank_0 = trainer.state, dist.get_global_rank() == 0
    assert state.max_duration is not None
    if state.timestamp.get(state.max_duration.unit) >= state.max_duration:
        if is_rank_0:
            duration = run.recipe.distill.max_duration
            print(f"{run.folder}: already trained for distill.max_duration={duration}.", file=sys.stderr)
        return
    if is_rank_0:
        begin_training(run)
    if state.timestamp.batch == 0:
        trainer.eval()
    with warnings.catch_warnings():
        # Composer warns when a resumed session starts after the last batch of an epoch.
        warnings.filterwarnings("ignore", message="No batches were trained for global rank")
        # It warns of a different number of processes; the order of the data depends only on the seed.
        warnings.filterwarnings("ignore", message="The current world size")
        trainer.fit()


if __name__ == "__main__":
    sys.exit(main())

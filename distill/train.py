"""The entry point of training: read this first.

    composer -n 8 -m distill.train RECIPE key=value ...

Reads <run>/init and <run>/data, and <run>/teacher_cache where the teacher is cached; writes <run>/checkpoints and
<run>/logs, and ends with the draft in <run>/draft. Where the recipe trains on text, <run>/data is what the draft is
evaluated on. Run it again after an interruption and it continues. `train` lists
the steps; each is a function of its own.

With `--debug` it trains the recipe's tiny likeness in <run>-debug (distill/debug.py).

With `architecture.method: learned_masks` there is a training before this one: while <run>/masks is not finished, the
same command trains that (distill/learned_masks.py) and stops.
"""

# ruff: noqa: E402  # nothing of ours is imported before the check that it is ours

from distill.own_packages import reject_foreign_packages

reject_foreign_packages()

from distill.process import restore_interrupts, take_interrupts

if __name__ == "__main__":
    take_interrupts()

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from composer import Trainer
from composer.utils import dist

restore_interrupts()  # which importing Composer has taken

from architectures.errors import UserError
from architectures.hub import read_config
from architectures.settings import Section, command_of, read_settings
from architectures.vocabulary import CONFIG_KEY, DRAFT_VOCABULARY_NAME, read_draft_vocabulary
from distill.checkpoints.checkpoint_files import chosen_checkpoint
from distill.checkpoints.trust import TrustCheckpoints, trust_checkpoints
from distill.data.batches import ResponseDataset
from distill.debug import begin_debug
from distill.distributed import reject_differing
from distill.export import export_draft, vocab_size_of
from distill.learned_masks import train_masks
from distill.process import end_on_sigterm, report_user_errors
from distill.recipe.recipe import (
    Debug,
    Overrides,
    ProfileFolder,
    Recipe,
    RecipeFile,
    load_recipe,
    require_profile_folder,
)
from distill.recipe.sections import DistillConfig
from distill.run import Run, identity_values, owned_run, shape_of
from distill.stage_inputs import begin_training, masks_are_due, require_training_inputs
from distill.teacher_cache import CachedResponses, TeacherCache
from distill.trainer import (
    DIST_TIMEOUT_S,
    build_model,
    build_trainer,
    keep_freed_memory,
    newest_for_all,
    training_device,
)
from eval.models import require_same_tokenizer
from eval.responses import read_traces, require_known_ids


class TrainSettings(Section):
    """The recipe that is trained."""

    recipe: RecipeFile
    overrides: Overrides = ()
    debug: Debug = False
    trust_checkpoints: TrustCheckpoints = False
    profile: ProfileFolder = None


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the recipe says; the exit code of the process."""
    restore_signals()
    return report_user_errors(lambda: train_from_arguments(argv))


def train_from_arguments(argv: Sequence[str] | None) -> None:
    """Read the recipe named on the command line and train."""
    parser = argparse.ArgumentParser(
        prog="composer -n N -m distill.train", description="Distil a draft.", allow_abbrev=False
    )
    settings = read_settings(parser, TrainSettings, sys.argv[1:] if argv is None else argv)
    if settings.trust_checkpoints:
        trust_checkpoints()
    path, overrides = settings.recipe, settings.overrides
    if settings.debug:
        path, overrides = debug_run(path, overrides), ()
    if settings.profile is not None:
        require_profile_folder(settings.profile)
    train(load_recipe(path, overrides), settings.profile)


def debug_run(recipe_path: Path, overrides: Sequence[str]) -> Path:
    """The recipe of a debug run, whose files rank 0 writes for all."""
    if dist.get_world_size() > 1:
        dist.initialize_dist(training_device(), timeout=DIST_TIMEOUT_S)
    written = [begin_debug(recipe_path, overrides) if dist.get_global_rank() == 0 else None]
    dist.broadcast_object_list(written, src=0)
    assert written[0] is not None  # rank 0 wrote it, or ended all of them
    return written[0]


def train(recipe: Recipe, profile: Path | None = None) -> None:
    """Distil <run>/init into <run>/draft, from the start or from where an earlier session stopped.

    Args:
        recipe: Says how.
        profile: Folder that takes a profile of a step, by rank 0; none is made if left out.

    Raises:
        UserError: If init, data or a cached teacher are missing or made from something else, the recipe does not fit
            this machine, the draft can say nothing of the responses, or another process works in the run.
    """
    run = Run.of(recipe)
    with owned_run(run) if dist.get_global_rank() == 0 else nullcontext():
        train_owned(run, profile)


def train_owned(run: Run, profile: Path | None) -> None:
    """The steps of a training, in a run that no other command works in."""
    config = run.recipe.distill
    share_cores()
    if dist.get_world_size() > 1:
        dist.initialize_dist(training_device(), timeout=DIST_TIMEOUT_S)
        reject_differing("recipe", dist.all_gather_object(identity_values(run.recipe)))
    if not torch.cuda.is_available():
        keep_freed_memory()
    if masks_are_due(run):
        join_other_processes(config)
        train_masks(run, profile)
        return
    require_training_inputs(run)
    require_fitting_readers(run)
    join_other_processes(config)
    checkpoint = newest_for_all(run.checkpoints.path)
    if config.train_on == "text" or config.online is not None:
        train_set, eval_set = None, read_split(run, "eval")
    else:
        train_set, eval_set = read_responses(run)
    if train_set is not None:
        require_learnable(train_set, run.init.path)
    tasks = eval_set.tasks
    if config.teacher.is_cache:
        train_set, eval_set = (
            None if responses is None else CachedResponses(responses, TeacherCache(run.teacher_cache.path, name))
            for name, responses in (("train", train_set), ("eval", eval_set))
        )
        assert eval_set is not None
    model = build_model(run, eval_tasks=tasks)
    trainer = build_trainer(run, model, train_set=train_set, eval_set=eval_set, checkpoint=checkpoint, profile=profile)
    try:
        fit(run, trainer)
    finally:
        trainer.engine.close()  # leaves logs whole and the terminal usable, also after an error
    export(run)


def require_fitting_readers(run: Run) -> None:
    """Refuse a draft with another tokenizer than the target's, or too short for the recipe's texts."""
    require_same_tokenizer(run.target, run.init.path)
    run.reject_long_texts(run.init.path)


def restore_signals() -> None:
    """Undo what importing Composer did: Ctrl-C is answered as before, and ranks above 0 end at once.

    Composer exits in an orderly way on SIGTERM, for the sake of loggers, which only rank 0 has; its launcher takes that
    for a crash of its own and prints all the others' output after the one message that matters. Rank 0 does so too, and
    says what happened.
    """
    restore_interrupts()
    signal.signal(signal.SIGTERM, signal.SIG_DFL if dist.get_global_rank() != 0 else end_on_sigterm)


def share_cores() -> None:
    """Give each process of this machine its share of the cores, unless OMP_NUM_THREADS says otherwise.

    Neither Composer's launcher nor torch does: eight processes would start eight times as many threads as cores.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // dist.get_local_world_size()))


def join_other_processes(config: DistillConfig) -> None:
    """Meet the other ranks, if there are any."""
    if dist.get_world_size() > 1 or config.parallelism != "ddp" or config.teacher.is_sharded:
        dist.initialize_dist(training_device(), timeout=DIST_TIMEOUT_S)


def read_responses(run: Run) -> tuple[ResponseDataset, ResponseDataset]:
    """The responses to train on and to evaluate on.

    Given conversations are trained on whole, but evaluated response by response; encoder-decoder models read each
    prompt separately, so they are also trained response by response.

    Raises:
        UserError: If no response is left of either, or a model that reads them has no row for one of their tokens.
    """
    joined = run.recipe.data.responses == "given" and not shape_of(run.target).encoder_layers
    return read_split(run, "train", joined=joined), read_split(run, "eval")


def read_split(run: Run, name: str, *, joined: bool = False) -> ResponseDataset:
    """The responses of one name; says what the limit on length did to them.

    Args:
        run: That holds them.
        name: "train" or "eval".
        joined: Whether the responses of a conversation are one sequence.

    Raises:
        UserError: If no response is left, or a model that reads them has no row for one of their tokens.
    """
    folder, max_seq_len = run.data.path, run.recipe.data.max_seq_len
    traces = read_traces(folder, name)
    require_known_ids((trace.token_ids for trace in traces), folder, name, vocab_sizes(run))
    learned = ResponseDataset.of_conversations if joined else ResponseDataset
    dataset = learned(traces, max_seq_len=max_seq_len)
    counts = dataset.counts
    if dist.get_global_rank() == 0:
        print(
            f"{name}: {counts.responses} responses with {counts.response_tokens} tokens"
            f"{'' if len(dataset) == counts.responses else f' in {len(dataset)} sequences'}; "
            f"data.max_seq_len={max_seq_len} cut {counts.cut} of them and left out {counts.left_out}.",
            file=sys.stderr,
        )
    if not counts.responses:
        raise UserError(
            f"{folder}: no {name} response fits data.max_seq_len={max_seq_len}. "
            f"Raise it, or give shorter prompts, and run {command_of('generate')} again."
        )
    return dataset


def require_learnable(train_set: ResponseDataset, init: Path) -> None:
    """Raise UserError if the draft's head has a row for none of the tokens that are to be learned."""
    if CONFIG_KEY not in read_config(init):
        return
    output_ids = set(read_draft_vocabulary(init).ids)
    if not any(token in output_ids for example in train_set.examples for token in example.response_ids):
        raise UserError(
            f"{init / DRAFT_VOCABULARY_NAME}: none of its {len(output_ids)} ids is said in the training responses, so "
            "that there is nothing to learn. Count the ids in these responses (architecture.vocabulary)."
        )


def vocab_sizes(run: Run) -> dict[Path, int]:
    """Rows of the embeddings of every model that reads the responses, by its folder; init where it is made already."""
    readers = [run.target, *([run.init.path] if run.init.path.is_dir() else [])]
    return {folder: vocab_size_of(folder) for folder in readers}


def fit(run: Run, trainer: Trainer) -> None:
    """Train to the end of max_duration, with an evaluation before the first batch."""
    state, config = trainer.state, run.recipe.distill
    assert state.max_duration is not None
    if state.timestamp.get(state.max_duration.unit) >= state.max_duration:
        if dist.get_global_rank() == 0:
            print(
                f"{run.folder}: already trained for distill.max_duration={config.max_duration}.",
                file=sys.stderr,
            )
        return
    if dist.get_global_rank() == 0:
        begin_training(run)
    if state.timestamp.batch == 0:
        trainer.eval()
    with warnings.catch_warnings():
        # said when a session resumes after the last batch of an epoch; that there are batches has been checked
        warnings.filterwarnings("ignore", message="No batches were trained for global rank")
        # said when it resumes with more or fewer processes; no random state of theirs is used, order follows the seed
        warnings.filterwarnings("ignore", message="The current world size")
        trainer.fit()


def export(run: Run) -> None:
    """Make <run>/draft from the checkpoint the recipe wants, on rank 0."""
    if dist.get_global_rank() != 0:
        return
    chosen = chosen_checkpoint(run.checkpoints.path, run.recipe.export.checkpoint)
    assert chosen is not None, "the end of training is always saved"
    export_draft(run, chosen, finished=True)
    print(f"{run.draft.path}: made from {chosen}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

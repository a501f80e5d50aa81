"""The stages that train, each in processes of its own: one for every GPU of this machine, or one on its processor.

Where a launcher has started several processes for this command, each of them starts one that trains, and these meet.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from architectures.checkpoints.manifest import changed_inputs
from architectures.sharing import ALONE, Share
from distill.ranks.joining import is_launched
from distill.recipe.recipe import load_recipe
from distill.run.run import Run
from distill.run.run_folder import held
from distill.run.stage import Finish, Stage, carry_out
from distill.run.stage_inputs import draft_inputs, mask_inputs, require_training_inputs

NOT_LAUNCHED = {  # the environment of a single process
    **dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"),
}


def mask_stage(recipe_path: Path, overrides: Sequence[str], share: Share = ALONE) -> None:
    """Train learned masks into <run>/masks; UserError if masks are there that were made from something else."""
    run = Run.of(load_recipe(recipe_path, overrides), share)

    def train(_: Run, __: Finish) -> None:
        run_training(recipe_path, overrides, share)

    carry_out(Stage(lambda run: run.masks, mask_inputs, train, changed="refuse"), run)


def distill_stage(recipe_path: Path, overrides: Sequence[str], *options: str, share: Share = ALONE) -> None:
    """Train <run>/checkpoints and export <run>/draft.

    Args:
        recipe_path: The recipe.
        overrides: Its key=value words.
        options: Of distill.train besides.
        share: This process's part of the training.
    """
    run = Run.of(load_recipe(recipe_path, overrides), share)
    if share.lead(lambda: is_trained(run)):
        print(f"   {run.draft.path}: up to date{', so there is no step to profile' if options else ''}")
        return
    run_training(recipe_path, [*overrides, *options], share)


def is_trained(run: Run) -> bool:
    """Whether there is the finished draft of what the recipe asks for.

    Raises:
        UserError: As require_training_inputs.
    """
    require_training_inputs(run)
    draft = run.draft.manifest
    return bool(draft is not None and draft.get("finished") and not changed_inputs(draft, draft_inputs(run)))


def run_training(recipe_path: Path, overrides: Sequence[str], share: Share = ALONE) -> None:
    """Run `distill.train` in processes of its own; end this one as they end if they fail.

    They keep this process's locks, so that a run is owned as long as its training lives.

    Args:
        recipe_path: The recipe.
        overrides: Its key=value words.
        share: This process's part: one of as many as a launcher started, or all of it, on this process's device where
            a launcher started others beside it.
    """
    if share.count == 1 and is_launched():
        end_if_failed(train_beside(recipe_path, overrides, {**NOT_LAUNCHED, **own_device()}))
        return
    if share.count == 1:
        command, locks = training_command(recipe_path, overrides), tuple(held.values())
        completed = subprocess.run(command, env=training_environment(), pass_fds=locks, check=False)
        end_if_failed(completed.returncode)
        return
    end_if_failed(train_beside(recipe_path, overrides, share.lead(meeting_place)))
    share.meet()


def train_beside(recipe_path: Path, overrides: Sequence[str], changes: Mapping[str, str]) -> int:
    """The exit code of a training process of this one's own, which ends with this one.

    Args:
        recipe_path: The recipe.
        overrides: Its key=value words.
        changes: In the environment.
    """
    free_device_memory()
    words, locks = training_words(recipe_path, overrides), tuple(held.values())
    environment = {**training_environment(), **changes}
    with subprocess.Popen([sys.executable, *words], env=environment, pass_fds=locks) as training:
        before = signal.signal(signal.SIGTERM, lambda *_: training.terminate())  # it says what that means
        try:
            return training.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


def end_if_failed(code: int) -> None:
    """End this process as a training process ended, which has said why: by its exit code, or by its signal."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if code != 0:
        sys.exit(code)


def meeting_place() -> dict[str, str]:
    """A place where training processes meet: the launcher's own is taken by those that start them."""
    with closing(socket.socket()) as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}  # torchrun's would be looked for there


def own_device() -> dict[str, str]:
    """The environment in which this process's GPU is the only one; nothing on a processor."""
    import torch

    if not torch.cuda.is_available():
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": names[torch.cuda.current_device()]}


def free_device_memory() -> None:
    """Give back what this process holds of its GPU for nothing, so that a training may have it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def training_command(recipe_path: Path, overrides: Sequence[str]) -> list[str]:
    """The command that trains: one process per GPU through Composer's launcher, or one process."""
    import torch

    words = training_words(recipe_path, overrides)
    if torch.cuda.device_count() > 1:
        return [sys.executable, "-m", "composer", "-n", str(torch.cuda.device_count()), *words]
    return [sys.executable, *words]


def training_words(recipe_path: Path, overrides: Sequence[str]) -> list[str]:
    """What Python is told, to train."""
    return ["-m", "distill.train", str(recipe_path), *overrides]


def training_environment() -> dict[str, str]:
    """This environment, with the working folder off the import path: a user's own eval.py must not hide ours."""
    return {**os.environ, "PYTHONSAFEPATH": "1"}

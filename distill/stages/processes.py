"""The stages that train, each in processes of its own: one for every GPU of this machine, or one on its processor.

Where a launcher has started several processes for this command, each of them starts one that trains, and these meet.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from architectures.checkpoints.manifest import changed_inputs
from architectures.sharing import ALONE, Share
from distill.ranks.joining import is_launched
from distill.recipe.recipe import load_recipe
from distill.run.run import Run
from distill.run.run_folder import held
from distill.run.stage_inputs import draft_inputs, mask_inputs, require_training_inputs
from distill.stages.table import carry_out

NOT_LAUNCHED = {  # the environment of a single process
    **dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"),
}


def mask_stage(recipe_path: Path, overrides: Sequence[str], share: Share = ALONE) -> None:
    """Train learned masks into <run>/masks; UserError if masks are there that were made from something else."""
    run = Run.of(load_recipe(recipe_path, overrides), share)

    carry_out(run, run.masks, mask_inputs, lambda *_: run_training(recipe_path, overrides, share), changed="refuse")


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
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}  # a user's own eval.py in the working folder must not hide ours
    command = training_command(recipe_path, overrides)
    if share.count > 1:
        environment |= share.lead(meeting_place)
    elif is_launched():
        environment |= {**NOT_LAUNCHED, **own_device()}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()  # what this process holds of its GPU for nothing
    with subprocess.Popen(command, env=environment, pass_fds=tuple(held.values())) as training:
        before = signal.signal(signal.SIGTERM, lambda *_: training.terminate())  # it says what that means
        try:
            code = training.wait()
        except BaseException:
            training.kill()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
    if code < 0:  # ended by a signal, as this process ends now
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if code != 0:
        sys.exit(code)
    share.meet()


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


def training_command(recipe_path: Path, overrides: Sequence[str]) -> list[str]:
    """One process for each GPU through Composer's launcher, unless a launcher has started this process; else one."""
    import torch

    several = torch.cuda.device_count() > 1 and not is_launched()
    launcher = ["composer", "-n", str(torch.cuda.device_count()), "-m"] if several else []
    return [sys.executable, "-m", *launcher, "distill.train", str(recipe_path), *overrides]

"""What happens during training besides learning: checkpoints that survive a full disk, and gradients kept in bounds."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from composer import Algorithm, Event, Logger, State
from composer.callbacks import CheckpointSaver
from composer.utils import dist, reproducibility

from architectures.errors import UserError
from distill.checkpoints import CHECKPOINT_NAME, LATEST_NAME, find_checkpoints, training_time


class CheckpointWriter(CheckpointSaver):
    """Composer's saver, but a checkpoint is whole or absent, and earlier sessions' checkpoints count among those kept.

    Args:
        folder: Where checkpoints go.
        save_interval: Time between two, as a Composer time string; the end of training is always saved.
        num_to_keep: The newest so many stay. One more exists while it is written, so a failed write costs none.
    """

    def __init__(self, folder: Path, *, save_interval: str, num_to_keep: int):
        super().__init__(
            folder=str(folder),
            filename=CHECKPOINT_NAME,
            latest_filename=LATEST_NAME,
            remote_file_name=None,
            latest_remote_file_name=None,
            save_interval=save_interval,
            num_checkpoints_to_keep=num_to_keep,
            overwrite=True,  # only files found damaged on resuming are ever in the way
        )

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Remove the folder that the base class makes for uploads."""
        self.tmp_dir_for_symlink.cleanup()

    def _save_checkpoint(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Write one file from rank 0. All ranks call this: a sharded student is gathered first."""
        self.last_checkpoint_batch = state.timestamp.batch
        path = Path(self.filename.format(state))
        contents = {"state": state.state_dict(), "rng": reproducibility.get_rng_state()}
        outcome = [self._publish(contents, path) if dist.get_global_rank() == 0 else None]
        dist.broadcast_object_list(outcome, src=0)
        if outcome[0] is not None:
            raise UserError(outcome[0])

    def _publish(self, contents: dict[str, Any], path: Path) -> str | None:
        """Write the file, point `latest` at it and remove the oldest; the problem in words if the disk refused."""
        try:
            write_checkpoint(contents, path)
        except (OSError, RuntimeError) as error:
            cause = disk_error(error)
            if cause is None:
                raise
            return explain_write_failure(cause, path)
        link_latest(path)
        now = training_time(path)
        found = sorted(
            find_checkpoints(path.parent), key=lambda other: (training_time(other) <= now, training_time(other))
        )
        for surplus in found[: -self.num_checkpoints_to_keep]:  # first damaged ones, then the oldest
            surplus.unlink()
        return None


def write_checkpoint(contents: dict[str, Any], path: Path) -> None:
    """Write a checkpoint through a neighbouring file and a rename, so that a crash leaves no half of it."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            torch.save(contents, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def link_latest(path: Path) -> None:
    """Let the `latest` link beside a checkpoint point to it."""
    link = path.with_name(LATEST_NAME.format(rank=0))
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)


def disk_error(error: BaseException | None) -> OSError | None:
    """The operating system's error behind an exception: torch raises a RuntimeError while it handles one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def explain_write_failure(cause: OSError, path: Path) -> str:
    """The message for a checkpoint that could not be written, with what can still be used."""
    usable = find_checkpoints(path.parent)
    earlier = f"{usable[-1]} stays usable" if usable else "there is no earlier one"
    free_gib = shutil.disk_usage(path.parent).free / 2**30
    return (
        f"{path}: writing this checkpoint failed ({cause.strerror}); its disk has {free_gib:.2f} GiB free, and "
        f"{earlier}. Make room, then run the same command again to continue."
    )


class ClipGradientNorm(Algorithm):
    """Scales all gradients down together when their norm exceeds a threshold, before every step.

    Composer's own GradientClipping looks for FSDP1 modules when a model is sharded, and so leaves gradients under FSDP2
    as they are; torch's function handles whole and sharded ones alike.

    Args:
        threshold: Largest Euclidean norm of all gradients together.
    """

    def __init__(self, threshold: float):
        self.threshold = threshold

    def match(self, event: Event, state: State) -> bool:  # noqa: ARG002
        """After the gradients of all micro-batches are there."""
        return event == Event.AFTER_TRAIN_BATCH

    def apply(self, event: Event, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Clip."""
        torch.nn.utils.clip_grad_norm_(state.model.parameters(), max_norm=self.threshold)

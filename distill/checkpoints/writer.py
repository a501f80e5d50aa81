"""Composer's saver, whose checkpoints survive a full disk."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from composer import Logger, State, Time
from composer.callbacks import CheckpointSaver
from composer.utils import dist, format_name_with_dist_and_time, reproducibility

from architectures.checkpoints.manifest import MANIFEST_NAME
from architectures.errors import UserError
from architectures.files.atomic import remove_partials, replacing
from distill.checkpoints.files import (
    BEST_NAME,
    CHECKPOINT_NAME,
    FOLDER_NAME,
    LATEST_NAME,
    disk_error,
    explain_write_failure,
    find_checkpoints,
    training_time,
)
from distill.checkpoints.saving import save_shards


class CheckpointWriter(CheckpointSaver):
    """Composer's saver, but a checkpoint is whole or absent, and earlier sessions' checkpoints count among those kept.

    After an evaluation that is no worse than any before, a checkpoint is written whether or not one is due, and stays
    until another is as good.

    Args:
        folder: Where checkpoints go.
        save_interval: Time between two, as a Composer time string; the end of training is always saved.
        num_to_keep: The newest so many stay. One more exists while it is written, so a failed write costs none.
        best_by: Name of the metric of evaluations that makes a checkpoint the best when it is highest; None for none.
        sharded: Whether each process writes its own shards.
        continues: Puts a trainer where a sharded checkpoint was written, which Composer does for files alone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        save_interval: str,
        num_to_keep: int,
        best_by: str | None = None,
        sharded: bool = False,
        continues: Callable[[State, Logger], None] | None = None,
    ):
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
        self.best_by, self.sharded, self.continues = best_by, sharded, continues

        self.best_value = float("-inf")
        self.best_batch = -1

    def before_load(self, state: State, logger: Logger) -> None:
        """The trainer is there, its model sharded."""
        if self.continues is not None:
            self.continues(state, logger)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Remove what a killed session left half-written."""
        super().fit_start(state, logger)
        if dist.get_global_rank() == 0:
            remove_partials(Path(self.folder), mark=MANIFEST_NAME)

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Remove the folder that the base class makes for uploads; no process waits for another, which may be gone."""
        self.tmp_dir_for_symlink.cleanup()

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Remember an evaluation no worse than any before; what is not trained yet does not count."""
        if self.best_by is None or state.timestamp.batch == 0:
            return
        value = float(state.eval_metric_values[self.best_by])
        if value >= self.best_value:
            self.best_value, self.best_batch = value, state.timestamp.batch.value
            if self.last_checkpoint_batch == state.timestamp.batch and dist.get_global_rank() == 0:
                self.tidy(Path(self.folder), self.best_batch)  # an evaluation at an epoch's or the training's end

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Write what is due, or the best so far."""
        super().batch_checkpoint(state, logger)
        self.save_best(state, logger)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """As after a batch, for intervals in epochs."""
        super().epoch_checkpoint(state, logger)
        self.save_best(state, logger)

    def save_best(self, state: State, logger: Logger) -> None:
        """Write the best so far unless it is written."""
        if self.best_batch == state.timestamp.batch != self.last_checkpoint_batch:
            self._save_checkpoint(state, logger)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training must know."""
        return {
            **super().state_dict(),
            "best_value": self.best_value,
            "saved_batch": int(self.last_checkpoint_batch or 0),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what an earlier session knew."""
        self.best_value = state["best_value"]
        self.last_checkpoint_batch = Time.from_batch(state["saved_batch"])
        super().load_state_dict(state)

    def _save_checkpoint(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Write one file from rank 0, or begin to write a folder. All ranks call this, for their shards."""
        self.last_checkpoint_batch = state.timestamp.batch
        if self.sharded:
            folder = Path(self.folder) / format_name_with_dist_and_time(FOLDER_NAME, state.run_name, state.timestamp)
            save_shards(state, folder)
            if dist.get_global_rank() == 0:
                self._is_there(folder)
            return
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
        self._is_there(path)
        return None

    def _is_there(self, path: Path) -> None:
        """Point `latest` at a new checkpoint and remove the oldest."""
        link_to(path, LATEST_NAME.format(rank=0))
        self.tidy(path.parent, training_time(path)[0])

    def tidy(self, folder: Path, batch: int) -> None:
        """Point `best` at the best; remove all but it and the newest, first damaged ones beyond the given batch."""
        checkpoints = sorted(
            find_checkpoints(folder), key=lambda path: (training_time(path)[0] <= batch, training_time(path))
        )
        for path in checkpoints:
            if training_time(path)[0] == self.best_batch:
                link_to(path, BEST_NAME)
        best = linked(folder / BEST_NAME)
        for surplus in checkpoints[: -self.num_checkpoints_to_keep]:
            if surplus.name != best:
                remove(surplus)


def write_checkpoint(contents: dict[str, Any], path: Path) -> None:
    """Write a checkpoint through a neighbouring file and a rename, so that a crash leaves no half of it."""
    with replacing(path) as file:
        torch.save(contents, file)


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint, a file or a folder; of a link to an earlier training's the link."""
    if checkpoint.is_dir() and not checkpoint.is_symlink():
        shutil.rmtree(checkpoint)
    else:
        checkpoint.unlink()


def link_to(path: Path, name: str) -> None:
    """Let a link of this name beside a checkpoint point to it."""
    link = path.with_name(name)
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)


def linked(link: Path) -> str | None:
    """The name of the file a link points to; None where there is no link."""
    return link.readlink().name if link.is_symlink() else None

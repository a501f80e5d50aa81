"""What is started on every machine, and what no script can start. No torch."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from architectures.errors import UserError
from architectures.files.masked_words import masked
from distill.recipe.recipe import Recipe

EXPANDED = re.compile(r"\$(?!\{)")  # whose value Composer's launcher would put there; ${...} is OmegaConf's
PREFIX, LONGEST_NAME = "widedraft-", 50  # a pod is called so with its number behind it, in at most 63 characters


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A run on several machines.

    Attributes:
        words: Of `widedraft`: the command, the recipe as the machines find it, and its values.
        run_name: Of the recipe.
        nodes: Machines.
        processes: On each, one for a GPU.
        port: At which the first machine's first process waits for all others.
        gpu: What SkyPilot calls the GPU; None for systems that need not know.
        image: Of the container; None where there is none.
        volume: That all machines mount; None where their disks are shared already.
        setup: Line of shell that goes before; None where nothing has to.
    """

    words: tuple[str, ...]
    run_name: str
    nodes: int
    processes: int
    port: int
    gpu: str | None = None
    image: str | None = None
    volume: str | None = None
    setup: str | None = None

    @property
    def all_processes(self) -> int:
        return self.nodes * self.processes

    @property
    def job_name(self) -> str:
        """The run's name as a system may call a job, a pod and a host."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.run_name.casefold()).strip("-")
        return f"{PREFIX}{slug}"[:LONGEST_NAME].rstrip("-")


def run_words(recipe: Path, overrides: Sequence[str], *, debug: bool) -> tuple[str, ...]:
    """The words behind `widedraft` that make all of a run.

    Raises:
        UserError: If a launcher would change one, or one looks like a secret.
    """
    words = ("run", str(recipe), *overrides, *(["--debug"] if debug else []))
    for word in words:
        refuse_unlaunchable(word)
    return words


def refuse_unlaunchable(word: str) -> None:
    """Raise UserError for a word that would not reach the processes as it is, or that no file should keep."""
    if EXPANDED.search(word) or len(word.splitlines()) > 1:
        raise UserError(
            f"{word!r}: a launcher replaces what stands behind a $, and a script is of lines. Write the value without, "
            "or in the recipe."
        )
    if masked(word) != word:
        raise UserError(
            f"{masked(word)}: looks like a secret, which the script would keep. Set it in the machines' environment "
            "and write ${oc.env:NAME} in its place."
        )


def refuse_unshared(recipe: Recipe, processes: int) -> None:
    """Raise UserError if so many processes cannot share what a recipe trains on.

    Raises:
        UserError: With every key that does not fit, and which numbers of processes would.
    """
    problems = [
        f"{key} must be a multiple of the number of processes, got {size} and {processes}. {remedy(size, processes)}"
        for key, size in shared_sizes(recipe)
        if size % processes
    ]
    degree = recipe.distill.shard_degree
    if degree != "auto" and processes % degree:
        problems.append(
            f"distill.shard_degree must divide the number of processes, got {degree} and {processes}. Change it, or "
            "--nodes and --gpus-per-node; auto takes those of a machine."
        )
    if recipe.target.placement == "spread" and processes > 1:
        problems.append(
            f"target.placement is spread, which takes all GPUs of a machine for one process, got {processes}. Set it "
            "to layers, of which each process has its own, or use --nodes 1 --gpus-per-node 1."
        )
    if problems:
        raise UserError("\n".join(problems))


def shared_sizes(recipe: Recipe) -> Iterator[tuple[str, int]]:
    """What processes divide among them, by key."""
    if recipe.architecture.method == "learned_masks":
        yield "architecture.masks.global_train_batch_size", recipe.architecture.masks.global_train_batch_size
    yield "distill.global_train_batch_size", recipe.distill.global_train_batch_size
    if recipe.distill.online is not None:
        yield "distill.online.update_interval", recipe.distill.online.update_interval


def remedy(size: int, processes: int) -> str:
    """The most of fewer processes that fit."""
    most = max(count for count in range(1, min(size, processes) + 1) if size % count == 0)
    return f"Change it, or --nodes and --gpus-per-node; of fewer processes {most} fit."


def quoted(words: Sequence[str]) -> str:
    """Words of a shell."""
    return shlex.join(words)

"""Two processes that train one recipe after another: torch and Composer are imported once for all of them.

What a launch itself does, and how one ends in which something is wrong, is tested by launches of their own.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from distill.recipe.recipe import save_recipe
from tests.processes import Warm

ROOT = Path(__file__).parents[2]
MOST_S = 280.0  # of one training; pytest ends a test after 300


class Pair:
    """The processes, which start with the first training that is asked of them."""

    def __init__(self, folder: Path):
        self.folder, self.numbers = folder, count()
        self.launcher: subprocess.Popen[bytes] | None = None
        self.shares: list[float] = []  # of the model that was trained last, what each process held

    def train(self, *words: str, chunk: int | None = None) -> subprocess.CompletedProcess[str]:
        """What `composer -n 2 -m distill.train WORDS` says, and the worse of two exit codes.

        Args:
            words: Of the command.
            chunk: Tokens whose logits are held together, in the place of as many as fit.
        """
        if self.launcher is None:
            self.launcher = started(self.folder)
        job = self.folder / str(next(self.numbers))
        ask(job, {"words": words, "chunk": chunk})
        until = time.monotonic() + MOST_S
        codes = [job.with_suffix(f".code{rank}") for rank in (0, 1)]
        while not all(code.is_file() for code in codes):
            assert self.launcher.poll() is None, "the two processes have ended"
            assert time.monotonic() < until, f"no end after {MOST_S:g} s"
            time.sleep(0.05)
        out, err = (
            "".join(job.with_suffix(f".{name}{rank}").read_text(encoding="utf-8") for rank in (0, 1))
            for name in ("out", "err")
        )
        self.shares = [float(share.read_text()) for share in sorted(self.folder.glob(f"{job.name}.share?"))]
        return subprocess.CompletedProcess(list(words), max(int(code.read_text()) for code in codes), out, err)

    def end(self) -> None:
        """Let both go; whoever trains still is killed by the launcher."""
        if self.launcher is not None:
            ask(self.folder / str(next(self.numbers)), None)
            try:
                self.launcher.wait(20)
            except subprocess.TimeoutExpired:
                self.launcher.terminate()
                self.launcher.wait()


def attempt(pair: Pair, recipe: Any, *words: str, chunk: int | None = None) -> "subprocess.CompletedProcess[str]":
    """Train a recipe by both; what comes of it."""
    path = Path(recipe.run_dir) / "recipe.yaml"
    save_recipe(recipe, path)
    return pair.train(str(path), *words, chunk=chunk)


def train_by(pair: Pair, recipe: Any, *options: str, chunk: int | None = None, **distill: object) -> str:
    """Train a recipe by both to the end; what they say on stderr."""
    overrides = (f"distill.{key}={value}" for key, value in distill.items())
    completed = attempt(pair, recipe, *overrides, *options, chunk=chunk)
    assert completed.returncode == 0, completed.stderr
    return completed.stderr


def started(folder: Path) -> "subprocess.Popen[bytes]":
    """The launcher of both."""
    command = [sys.executable, "-m", "composer", "-n", "2", "-m", "tests.distill.two_processes", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    silent = subprocess.DEVNULL
    return Warm(command, cwd=ROOT, env=environment, stdin=silent, stdout=silent, stderr=silent)


def ask(job: Path, asked: dict[str, Any] | None) -> None:
    """Write a job down, whole; None for the last."""
    job.with_suffix(".partial").write_text(json.dumps(asked), encoding="utf-8")
    job.with_suffix(".partial").rename(job.with_suffix(".json"))


def serve(folder: Path) -> None:
    """Train what is asked for, until nothing more is, or whoever asks has gone."""
    from distill.train import main

    rank, parent = os.environ["RANK"], os.getppid()
    for number in count():
        job = folder / f"{number}.json"
        while not job.is_file():
            if os.getppid() != parent:
                return
            time.sleep(0.02)
        asked = json.loads(job.read_text(encoding="utf-8"))
        if asked is None:
            return
        with (
            said_into(job.with_suffix(f".out{rank}"), job.with_suffix(f".err{rank}")),
            in_chunks_of(asked["chunk"]),
            noted_shares(job.with_suffix(f".share{rank}")),
        ):
            try:
                code = main(asked["words"])
            except BaseException:  # as of a process of its own: a traceback and exit code 1
                traceback.print_exc()
                code = 1
        job.with_suffix(f".partial{rank}").write_text(str(code))
        job.with_suffix(f".partial{rank}").rename(job.with_suffix(f".code{rank}"))


def in_chunks_of(tokens: int | None) -> AbstractContextManager[object]:
    """Losses take so many tokens at a time, if any are told."""
    if tokens is None:
        return nullcontext()
    return patch("distill.chunked_loss.chunk_size", lambda _vocab: tokens)


@contextmanager
def noted_shares(path: Path) -> Iterator[None]:
    """A training writes down, as it begins, which share of its model's parameters this process holds."""
    from composer import Trainer

    evaluate, fit = Trainer.eval, Trainer.fit

    def note(trainer: Any) -> None:
        if path.exists():  # the first evaluation leaves the head gathered
            return
        held = [
            (getattr(each, "to_local", lambda each=each: each)(), each) for each in trainer.state.model.parameters()
        ]
        path.write_text(str(sum(part.numel() for part, _ in held) / sum(each.numel() for _, each in held)))

    def noted_evaluation(trainer: Any, *args: Any, **settings: Any) -> None:
        note(trainer)
        evaluate(trainer, *args, **settings)

    def noted_fit(trainer: Any, *args: Any, **settings: Any) -> None:
        note(trainer)  # learned masks are trained without an evaluation
        fit(trainer, *args, **settings)

    with patch.object(Trainer, "eval", noted_evaluation), patch.object(Trainer, "fit", noted_fit):
        yield


@contextmanager
def said_into(out: Path, err: Path) -> Iterator[None]:
    """Whatever the process prints goes into two files."""
    kept = os.dup(1), os.dup(2)
    with out.open("wb") as out_file, err.open("wb") as err_file:
        os.dup2(out_file.fileno(), 1)
        os.dup2(err_file.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, number in zip(kept, (1, 2), strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))

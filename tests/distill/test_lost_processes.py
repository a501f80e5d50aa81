"""Every stage of a run by one process, by two, and by two of which one is killed, after which the command runs again.

The files are those of one process in all three, and what was finished is not made again. Two processes are two threads
here that take turns; that real ones end together, and say so, is tested in test_several_processes.py, and that a
training goes on from its newest checkpoint in test_distributed.py.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from architectures.sharing import ALONE, Share
from distill import teacher_cache
from distill.pipeline import cache_stage, checkpoints_stage, distill_stage, eval_stage, generate_stage, prune_stage
from distill.recipe.recipe import load_recipe
from distill.run import Run
from eval.checkpoint_curve import JSON_NAME
from eval.decoding import generate as answering
from tests.conftest import train_here
from tests.distill.recipe_files import write_recipe
from tests.distill.test_several_processes import CUT, SETTINGS, contents
from tests.sharing import by_processes

UNITS = {  # of a stage: object and name of the function that makes one of the files that processes share out
    "generate": (answering, "write_shard"),
    "cache": (teacher_cache, "write_tensors"),
    "eval": (answering, "write_shard"),
}
STAGES: dict[str, tuple[Callable[[Run], object], tuple[str, ...], tuple[str, ...]]] = {
    # what does it, the folders it makes, and those of them that hold nothing that is timed
    "generate": (generate_stage, ("data",), ("data",)),
    "prune": (prune_stage, ("scores", "init"), ("scores", "init")),
    "cache": (cache_stage, ("teacher_cache",), ("teacher_cache",)),
    "distill": (lambda run: distill_stage(run.recipe_file, []), ("checkpoints", "draft", "logs"), ()),
    "eval": (eval_stage, ("eval",), ("eval/responses",)),
}


@pytest.fixture(scope="module")
def whole(make_checkpoint, tmp_path_factory, trainings_begin_at_once) -> Path:
    """A folder with a recipe, and its run by one process as "whole"."""
    folder = tmp_path_factory.mktemp("lost")
    write_recipe(folder, make_checkpoint(seed=1), CUT, SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        train_here(patch)
        for stage in STAGES:
            STAGES[stage][0](run_of(folder))
    return (folder / "run").rename(folder / "whole").parent


def run_of(folder: Path, share: Share = ALONE) -> Run:
    return Run.of(load_recipe(folder / "recipe.yaml", []), share)


def carry_out_by_two(stage: str, folder: Path) -> None:
    by_processes(2, lambda share: STAGES[stage][0](run_of(folder, share)))


def run_before(stage: str, folder: Path) -> Path:
    """The run as it is before a stage."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(folder / "whole", run, symlinks=True)
    for name in list(STAGES)[list(STAGES).index(stage) :]:
        for made in STAGES[name][1]:
            shutil.rmtree(run / made)
    return run


class Units:
    """Counts the units of a stage that are made, and kills who comes to one of them."""

    def __init__(self, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
        holder, name = UNITS[stage]
        self.count, self.fatal, make = 0, 0, getattr(holder, name)

        def counted(*words: Any, **named: Any) -> Any:
            self.count += 1
            if self.count == self.fatal:
                raise MemoryError("killed")
            return make(*words, **named)

        monkeypatch.setattr(holder, name, counted)


@pytest.mark.parametrize("stage", UNITS)
def test_two_processes_and_a_lost_one_make_the_files_of_one(whole, monkeypatch, stage):
    """What was made is not made again, but for one unit at most."""
    units, (_, folders, compared) = Units(stage, monkeypatch), STAGES[stage]
    run = run_before(stage, whole)
    carry_out_by_two(stage, whole)
    assert contents(run, *compared) == contents(whole / "whole", *compared)

    num_units, units.count, units.fatal = units.count, 0, units.count // 2 + 1
    run = run_before(stage, whole)
    with pytest.raises(MemoryError):
        carry_out_by_two(stage, whole)
    num_left, units.count, units.fatal = num_units - (units.fatal - 1), 0, 0
    carry_out_by_two(stage, whole)
    assert num_left <= units.count <= num_left + 1
    assert contents(run, *compared) == contents(whole / "whole", *compared)
    for folder in folders:
        assert names(run / folder) == names(whole / "whole" / folder)  # nothing that was kept stays


def test_checkpoints_that_two_score_are_those_of_one(whole):
    run, curves = whole / "run", []
    for count in (1, 2):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole / "whole", run, symlinks=True)
        by_processes(count, lambda share: checkpoints_stage(run_of(whole, share)))
        curves.append((run / "eval" / JSON_NAME).read_bytes())
    assert curves[0] == curves[1]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))

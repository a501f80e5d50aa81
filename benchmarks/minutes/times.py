"""Step times of every shape, measured anew: they come from this code and machine, and from no training."""

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

from architectures.checkpoints.manifest import git_commit
from benchmarks.minutes.cells import Cell
from benchmarks.minutes.fill import in_its_own_process
from benchmarks.minutes.inputs import scored_answers
from benchmarks.minutes.merit import Shape, shape_of
from benchmarks.minutes.record import Finished, read_finished, write_finished
from benchmarks.minutes.scoring import measured_latency, pair_of
from benchmarks.minutes.setting import Setting
from distill.run.progressive import share_answers
from distill.run.run import Run
from distill.stages.running import prune_stage
from eval.latency.machine import torch_threads


def time_again(setting: Setting) -> None:
    """Time the shape of every finished cell with a draft that was cut and not trained, and write it into the cell."""
    by_shape: dict[Shape, list[Finished]] = {}
    for result in read_finished(setting.cells):
        by_shape.setdefault(shape_of(result.cell), []).append(result)
    for results in by_shape.values():
        latency = in_its_own_process(partial(latency_of, setting, results[0].cell), setting.threads)
        for result in results:
            [draft] = latency["drafts"]
            own = {**latency, "drafts": [{**draft, "draft": result.cell.name}]}
            write_finished(replace(result, latency=own), setting.cells)
        print(f"  {results[0].cell.name} and {len(results) - 1} cells of the same shape: timed", flush=True)


def latency_of(setting: Setting, cell: Cell) -> dict[str, Any]:
    """Step times of a cell's shape, and the code that took them."""
    run = setting.work / "cell" / "times"
    shutil.rmtree(run, ignore_errors=True)
    recipe = setting.cell_recipe(cell.configuration, cell.configuration.phases[0], run, None)
    share_answers(Run.of(setting.shared_recipe()), Run.of(recipe))
    prune_stage(Run.of(recipe))
    with torch_threads(setting.threads):
        pair = pair_of(setting, cell, run / "init")
        return {**measured_latency(setting, pair, scored_answers(setting)), "commit": git_commit()}

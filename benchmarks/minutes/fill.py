"""The cells that are not there yet, each made in a process of its own."""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

import torch

from architectures.checkpoints.manifest import git_commit, package_version, processor_name
from architectures.files.atomic import write_json
from benchmarks.minutes.cells import Cell, Plan, stages
from benchmarks.minutes.inputs import make_inputs, scored_answers
from benchmarks.minutes.merit import ranked
from benchmarks.minutes.page import stage_lines
from benchmarks.minutes.record import (
    INPUTS_NAME,
    SCHEMA,
    Finished,
    Machine,
    cell_path,
    read_finished,
    refuse_others,
    write_finished,
)
from benchmarks.minutes.scoring import score_draft
from benchmarks.minutes.setting import Setting
from benchmarks.minutes.training import train_cell
from distill.train import restore_signals

Result = TypeVar("Result")


def fill(setting: Setting, plan: Plan) -> None:
    """Do every cell that is not there yet, stage after stage.

    Raises:
        UserError: If there are cells of other inputs.
    """
    restore_signals()  # which importing Composer has taken
    made = in_its_own_process(partial(make_inputs, setting), setting.threads)
    refuse_others(read_finished(setting.cells), made["inputs"], setting.cells)
    if not (setting.cells / INPUTS_NAME).is_file():
        write_json(made, setting.cells / INPUTS_NAME)
    for stage in stages(plan, lambda cells: ranked(cells, read_finished(setting.cells))):
        print("\n".join(stage_lines(stage, read_finished(setting.cells))), flush=True)
        for cell in stage.cells:
            if not cell_path(setting.cells, cell).is_file():
                in_its_own_process(partial(make_cell, setting, cell, made["inputs"]), setting.threads)


def in_its_own_process(work: Callable[[], Result], threads: int) -> Result:
    """What some work gives; a process that trained a dozen times would hold ten times the memory of one training."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(prepared, work, threads).result()
        except BaseException:  # also Ctrl-C and the end of this process, which would wait for the cell otherwise
            for process in active_children():
                process.kill()
            raise


def prepared(work: Callable[[], Result], threads: int) -> Result:
    """The same, in the process made for it."""
    restore_signals()
    torch.set_num_threads(threads)
    return work()


def make_cell(setting: Setting, cell: Cell, inputs: dict[str, str]) -> None:
    """Train and score one cell, and write its file."""
    start_s = time.perf_counter()
    trained = train_cell(setting, cell)
    scores = score_draft(setting, cell, trained.draft, scored_answers(setting))
    wall_s = time.perf_counter() - start_s
    finished = finished_cell(setting, cell, inputs, phases=trained.phases, wall_s=wall_s, **scores)
    write_finished(finished, setting.cells)
    print(
        f"  {cell.name}: {finished.train_s:.1f} s of training ({finished.missed_by:+.1%}), {wall_s:.0f} s", flush=True
    )


def finished_cell(setting: Setting, cell: Cell, inputs: dict[str, str], **figures: Any) -> Finished:
    """A cell with where and when it was made."""
    recipe = setting.shared_recipe()
    machine = Machine(
        processor=processor_name(),
        torch=package_version("torch") or "",
        threads=setting.threads,
        precision=recipe.distill.precision,
        eval_dtype=recipe.eval.dtype,
    )
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Finished(
        schema=SCHEMA, cell=cell, inputs=inputs, machine=machine, commit=git_commit(), created=created, **figures
    )

"""Step times on a grid of batches and contexts, by eager steps and others, beside what the machine was doing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.progress.track import Advance, progress
from eval.acceptance.estimates import Resampling
from eval.latency.evidence import Started, step_evidence
from eval.latency.floor import step_bytes
from eval.latency.machine import machine_state, memory_bandwidth
from eval.latency.measure import Latency, measure_both_ways
from eval.latency.steps import Setting
from eval.models.execution import How
from eval.records.evidence import StepEvidence
from eval.records.grid import TARGET, Bandwidth, Cell, GridFigures, GridStep, GridSteps, Machine
from eval.steps.fixed_steps import FixedSteps
from eval.steps.openers import new_opener
from eval.steps.sequencer import Opener, open_sequencer, takes_rows

PASS_ROWS = 32  # that cost what the weights of a pass do: 54 ms of them and 1.4 ms a row read, of docs/latency.md


@dataclass(frozen=True)
class Grid:
    """What is measured.

    Attributes:
        batches: Numbers of rows.
        contexts: Tokens in every row before a step.
        lookaheads: Numbers of draft tokens whose verification is timed.
        repeats: Timed repetitions of every step, in turn with the others and once more by itself.
        made: How steps are run that everything is measured with too; "eager" for no others than the eager ones.
        prefill: Whether the reading of the contexts is timed.
    """

    batches: Sequence[int]
    contexts: Sequence[int]
    lookaheads: Sequence[int]
    repeats: int
    made: How = "eager"
    prefill: bool = True

    def cells(self) -> list[tuple[How, int, int]]:
        """How steps are run, batch and context of each; those with the same steps to make follow each other."""
        return list(product(self.ways, self.batches, self.contexts))

    @property
    def ways(self) -> list[How]:
        return ["eager"] if self.made == "eager" else ["eager", self.made]


def measure_grid(
    models: Mapping[str, PreTrainedModel], text_ids: Sequence[int], grid: Grid, resampling: Resampling
) -> GridFigures:
    """Measure every cell.

    Args:
        models: TARGET and perhaps drafts, by name, on one device.
        text_ids: What the caches are filled with, again and again where a context is longer.
        grid: Which cells.
        resampling: How intervals are made; the seed also draws the order of the steps.

    Raises:
        UserError: If a model reads one text at a time and the grid has larger batches, or no other than eager steps
            can be made of it here.
    """
    require_rows(models, grid)
    openers = openers_for(grid, models)
    device, cells = models[TARGET].device, grid.cells()
    bandwidth, before, started = memory_bandwidth(device), machine_state(device), Started()
    works = [cell_work(grid, len(models), how, batch, context) for how, batch, context in cells]
    measured = []
    with progress("timing steps", total=len(cells), whole=sum(works)) as advance:
        for (how, batch, context), work in zip(cells, works, strict=True):
            setting = Setting(repeated(text_ids, context), batch, openers[how])
            share = partial(advance_share, advance, work)
            together, alone = steps_both_ways(models, setting, grid, share, resampling)
            floor = floors(models, batch, context, max(bandwidth.values()))
            measured.append(
                Cell(
                    batch=batch,
                    context_tokens=context,
                    compiled=how == "compiled",
                    captured=how == "captured",
                    together=together,
                    alone=alone,
                    floor=floor,
                )
            )
            advance(0)
    return GridFigures(
        lookaheads=tuple(grid.lookaheads),
        bandwidth_gb_s=Bandwidth(**{name: value / 1e9 for name, value in bandwidth.items()}),
        machine=Machine(before=before, after=machine_state(device), threads=torch.get_num_threads()),
        cells=tuple(measured),
        evidence=evidence_of_first(measured[0], models, text_ids, started),
    )


def evidence_of_first(
    cell: Cell, models: Mapping[str, PreTrainedModel], text_ids: Sequence[int], started: Started
) -> StepEvidence:
    """What the grid's first cell, whose steps are eager, is held against."""
    medians_ms = {name: cell.together.of(name, 1).median_ms for name in models}
    setting = Setting(repeated(text_ids, cell.context_tokens), cell.batch)
    return step_evidence(models, medians_ms, setting, started)


def cell_work(grid: Grid, num_models: int, how: How, batch: int, context: int) -> float:
    """What the steps of a cell are to those of another: passes, and rows read at once, as far as they cost time."""
    passes = [*(batch * (lookahead + 1) for lookahead in (0, *grid.lookaheads)), *([batch] * 9 * (num_models - 1))]
    if grid.prefill and how == "eager":
        passes += [batch * context] * num_models
    setting_up = 2 * batch * context * num_models
    return 2 * grid.repeats * sum(PASS_ROWS + rows for rows in passes) + setting_up


def advance_share(advance: Advance, work: float, share: float) -> None:
    """Some share of the work of a cell is done."""
    advance(work * share, items=0)


def openers_for(grid: Grid, models: Mapping[str, PreTrainedModel]) -> dict[How, Opener]:
    """What runs the models, each asked about every model before anything is measured."""
    openers: dict[How, Opener] = {how: new_opener(how) for how in grid.ways}
    for opener in openers.values():
        if isinstance(opener, FixedSteps):
            for model in models.values():
                opener.require(model)
    return openers


def steps_both_ways(
    models: Mapping[str, PreTrainedModel],
    setting: Setting,
    grid: Grid,
    advance: Callable[[float], None],
    resampling: Resampling,
) -> tuple[GridSteps, GridSteps]:
    """Every step of one cell, in turn with the others and by itself."""
    together, alone = measure_both_ways(
        models,
        setting,
        lookaheads=grid.lookaheads,
        with_prefill=grid.prefill and setting.opener is open_sequencer,  # prompts are read by eager steps
        repeats=grid.repeats,
        advance=advance,
        resampling=resampling,
    )
    return grid_steps(together), grid_steps(alone)


def grid_steps(latency: Latency) -> GridSteps:
    """Step times of the target and every draft."""
    return GridSteps(
        repeats=latency.repeats,
        warm_up_repeats=latency.warm_up_repeats,
        settled=latency.is_settled,
        steps=tuple(
            GridStep(
                model=kind.model,
                tokens=kind.tokens,
                prefill=kind.is_prefill,
                **vars(time),
                each_ms=tuple(1000 * seconds for seconds in latency.seconds[kind]),
            )
            for kind, time in latency.times.items()
        ),
    )


def floors(
    models: Mapping[str, PreTrainedModel], batch: int, context: int, bytes_per_s: float
) -> dict[str, float | None]:
    """Milliseconds a step of each model must take, however few tokens it reads; None where its bytes are not known."""
    least: dict[str, float | None] = {}
    for name, model in models.items():
        count = step_bytes(model, batch=batch, context=context)
        least[name] = None if count is None else 1000 * count / bytes_per_s
    return least


def require_rows(models: Mapping[str, PreTrainedModel], grid: Grid) -> None:
    """Raise UserError where a model cannot take the batches asked for."""
    largest = max(grid.batches)
    for model in models.values():
        if largest > 1 and not takes_rows(model):
            raise UserError(
                f"--batch-sizes {largest}: models of type {model.config.model_type} ({model.name_or_path}) are decoded "
                "one text at a time here. Use --batch-sizes 1."
            )


def repeated(text_ids: Sequence[int], length: int) -> list[int]:
    """The first tokens of a text that is said again and again."""
    return (list(text_ids) * -(-length // len(text_ids)))[:length]

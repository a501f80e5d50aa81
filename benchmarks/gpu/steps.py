"""Stage b: steps of the target and of drafts' shapes beside what reading their bytes takes, and what depth costs.

Weights are random: how long a step takes depends on a model's shape. A draft's token is one of a chain of eight, each
the argmax of the one before; its two tokens are the step after a round that kept everything. The target's are read at
once, as it verifies. Each shape is timed by itself in each cell, so that the failing of one leaves the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.settings import How
from benchmarks.depth_and_width import DepthAndWidth, depth_and_width
from benchmarks.gpu.machine import bandwidth
from benchmarks.gpu.stage import Row, Setting, attempt, free_memory, lack_of_memory, lack_of_time
from benchmarks.gpu.step_models import equal_models, makers
from benchmarks.gpu.step_sizes import AIM_CELL, AIM_SHAPE, MOST_WARM_UPS, SIZES, Cell, Sizes
from eval.decoding.cuda_graphs import CapturedSteps, captured_capacity, new_opener
from eval.decoding.kv_cache import Opener
from eval.intervals import Estimate, Resampling, percentile_interval
from eval.latency import (
    CHAIN_LENGTH,
    Kind,
    Step,
    cache_bytes,
    draft_steps,
    dtype_name,
    hold_context,
    repeated,
    shape_of,
    summarise,
    target_steps,
    time_chain,
    time_together,
)
from eval.latency import Setting as StepSetting

RESAMPLING = Resampling(confidence=0.95, num_resamples=1000, seed=17)
TEXT = range(3, 203)  # which tokens makes no difference to the time


@dataclass
class Bench:
    """What the cells share.

    Attributes:
        setting: As the stage was given it.
        sizes: What is timed.
        bytes_per_s: At which this memory is read.
        models: By the names of their shapes.
        openers: One for each way of running steps.
        seconds: Of one token, by where and of what.
    """

    setting: Setting
    sizes: Sizes
    bytes_per_s: float
    models: dict[str, PreTrainedModel] = field(default_factory=dict)
    openers: dict[How, Opener] = field(default_factory=dict)
    seconds: dict[tuple[Cell, str], Sequence[float]] = field(default_factory=dict)

    def step_setting(self, cell: Cell) -> StepSetting:
        """Where the steps of a cell are taken."""
        if cell.how not in self.openers:
            self.openers[cell.how] = new_opener(cell.how)
        return StepSetting(repeated(TEXT, cell.context), cell.batch, self.openers[cell.how])

    def forget(self) -> None:
        """Give back the caches of the steps that were timed last; no cycles are looked for, which takes as long."""
        for opener in self.openers.values():
            if isinstance(opener, CapturedSteps):
                opener.forget()
        if self.setting.device.type == "cuda":
            torch.cuda.empty_cache()


def rows(setting: Setting) -> Iterator[Row]:
    """Cell by cell; behind a cell what it says of depth, and of what was aimed at."""
    sizes = SIZES[setting.size]
    bench = Bench(setting, sizes, bandwidth(setting))
    for name, make in makers(setting, sizes, bench.models).items():
        made = attempt({"shape": name}, lambda make=make: {"model": make()})
        if "model" in made:
            bench.models[name] = made["model"]
        else:
            yield made
    for cell in sizes.cells:
        for name in cell.only or tuple(bench.models):
            if name in bench.models:
                yield from cell_rows(bench, cell, name)
        yield from summaries(bench, cell)
        free_memory()
        if cell == sizes.equal_cell and sizes.target in bench.models:
            yield equal_row(bench)


def cell_rows(bench: Bench, cell: Cell, name: str) -> Iterator[Row]:
    """The steps of one shape in one cell, or why there are none."""
    model = bench.models[name]
    named = {"shape": name, "how": cell.how, "batch": cell.batch, "context": cell.context}
    reason = lack(bench, cell, model)
    if reason is not None:
        yield named | {"skipped": reason}
        return
    measured = attempt(named, lambda: {"steps": step_rows(bench, cell, name)})
    bench.forget()
    yield from measured.get("steps", [measured])


def lack(bench: Bench, cell: Cell, model: PreTrainedModel) -> str | None:
    """Why the steps of a model are not begun; None where nothing is in the way."""
    opener = bench.step_setting(cell).opener
    if isinstance(opener, CapturedSteps):
        try:
            opener.require(model)
        except UserError as error:
            return str(error)
    what = f"{cell.how} steps at batch {cell.batch} and {cell.context} tokens"
    needed = needed_bytes(model, cell, opener)
    return lack_of_memory(bench.setting, needed, what) or lack_of_time(
        bench.setting, bench.sizes.cell_s[cell.how], what
    )


def step_bytes(model: PreTrainedModel, *, batch: int, context: int) -> int | None:
    """Bytes a step reads at least: weights, keys and values, no activations; None where `shape_of` is."""
    if shape_of(model) is None:
        return None
    return weight_bytes_read(model) + cache_bytes(model, batch=batch, context=context)


def weight_bytes_read(model: PreTrainedModel) -> int:
    """Bytes of the weights that a step reads: all, except embeddings that are not the head as well."""
    total = sum(parameter.nbytes for parameter in model.parameters())
    embeddings: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    is_head = head is not None and head.weight is embeddings.weight
    return total if is_head else total - embeddings.weight.nbytes


def needed_bytes(model: PreTrainedModel, cell: Cell, opener: Opener) -> int:
    """Memory that reading the context takes: the cache, what a layer computes, and the mask twice, as two types."""
    shape = shape_of(model)
    assert shape is not None, "shapes of this bench are of known families"
    slots = cell.context + CHAIN_LENGTH + 1
    slots = captured_capacity(slots) if isinstance(opener, CapturedSteps) else slots + slots // 8
    number = model.dtype.itemsize
    of_a_token = (4 * shape.intermediate + 8 * shape.hidden) * number + slots * (1 + number)
    return cell.batch * (slots * shape.kv_bytes_per_token(dtype_name(model)) + cell.context * of_a_token)


@torch.inference_mode()
def step_rows(bench: Bench, cell: Cell, name: str) -> list[Row]:
    """One row for each number of tokens."""
    model, sizes = bench.models[name], bench.sizes
    shape, least = shape_of(model), step_bytes(model, batch=cell.batch, context=cell.context)
    assert shape is not None
    assert least is not None
    described = {"shape": name, "layers": shape.layers, "hidden": shape.hidden, "parameters": shape.parameters()}
    described |= {"how": cell.how, "batch": cell.batch, "context": cell.context}
    timed = time_together(
        steps_of(bench, cell, name),
        np.random.default_rng(RESAMPLING.seed),
        range(sizes.repeats),
        max_warm_ups=MOST_WARM_UPS,
    )
    [bench.seconds[cell, name]] = [seconds for kind, seconds in timed.seconds.items() if kind.tokens == 1]
    floor = {"floor_ms": 1000 * least / bench.bytes_per_s, "dtype": dtype_name(model)}
    return [described | {"tokens": kind.tokens} | in_ms(seconds) | floor for kind, seconds in timed.seconds.items()]


def steps_of(bench: Bench, cell: Cell, name: str) -> Mapping[Kind, Step]:
    """Timers; where few shapes are timed, of one token alone."""
    model, step_setting = bench.models[name], bench.step_setting(cell)
    if cell.only:
        return {Kind(name, 1): partial(time_chain, hold_context(model, step_setting, [(1, False)]))}
    if name != bench.sizes.target:
        return draft_steps(name, model, step_setting)
    return target_steps(model, step_setting, [tokens - 1 for tokens in bench.sizes.verified[cell.how] if tokens > 1])


def in_ms(seconds: Sequence[float]) -> Row:
    """The median with its interval."""
    time = summarise(seconds, RESAMPLING.confidence)
    return {"median_ms": time.median_ms, "interval_ms": listed(time.p50_ms)}


def listed(estimate: Estimate) -> list[float] | None:
    """Its interval, as a file has it."""
    return None if estimate.interval is None else list(estimate.interval)


def summaries(bench: Bench, cell: Cell) -> Iterator[Row]:
    """What the steps of a cell say of pairs of equal size, and of the aim."""
    where = {"how": cell.how, "batch": cell.batch, "context": cell.context}
    for deep, wide in bench.sizes.pairs:
        if (cell, deep) in bench.seconds and (cell, wide) in bench.seconds:
            ratio = ratio_of_medians(bench.seconds[cell, deep], bench.seconds[cell, wide])
            yield {"deep": deep, "wide": wide, **where, **ratio}
    if cell == AIM_CELL and (cell, AIM_SHAPE) in bench.seconds:
        least = step_bytes(bench.models[AIM_SHAPE], batch=cell.batch, context=cell.context)
        assert least is not None
        share = least / bench.bytes_per_s / float(np.median(bench.seconds[cell, AIM_SHAPE]))
        yield {"aim": "captured 5-layer step at 80 % of its floor", "reached": share}


def ratio_of_medians(over_s: Sequence[float], under_s: Sequence[float]) -> Row:
    """With an interval by bootstrap over the repetitions of each."""
    rng = np.random.default_rng(RESAMPLING.seed)
    medians = [
        np.median(rng.choice(values, size=(RESAMPLING.num_resamples, len(values))), axis=1)
        for values in (over_s, under_s)
    ]
    low, high = percentile_interval(medians[0] / medians[1], RESAMPLING.confidence, num_units=len(under_s))
    return {"deep_over_wide": float(np.median(over_s) / np.median(under_s)), "interval": [low, high]}


def equal_row(bench: Bench) -> Row:
    """What depth costs by shapes of equal size, all of them timed in turn."""
    cell, sizes = bench.sizes.equal_cell, bench.sizes
    target = bench.models[sizes.target]
    named = {"equal_shapes": len(sizes.equal), "how": cell.how, "batch": cell.batch, "context": cell.context}
    needed = round(len(sizes.equal) * sizes.equal_share * sum(each.nbytes for each in target.parameters()))
    reason = lack(bench, cell, target) or lack_of_memory(bench.setting, needed, "their weights")
    if reason is not None:
        return named | {"skipped": reason}
    row = attempt(named, partial(depth_of_equal, bench, cell))
    bench.forget()
    return row


@torch.inference_mode()
def depth_of_equal(bench: Bench, cell: Cell) -> Row:
    """How many times as long a step of the deepest takes as one of the shallowest, and what a layer adds."""
    opener, models = new_opener(cell.how), equal_models(bench.models[bench.sizes.target], bench.sizes)
    step_setting = StepSetting(repeated(TEXT, cell.context), cell.batch, opener)
    held = {shape.name: hold_context(model, step_setting, [(1, False)]) for shape, model in models.items()}
    steps = {Kind(name, 1): partial(time_chain, drafter) for name, drafter in held.items()}
    rng = np.random.default_rng(RESAMPLING.seed)
    timed = time_together(steps, rng, range(bench.sizes.repeats), max_warm_ups=MOST_WARM_UPS)
    times_RS = 1000 * np.array([timed.seconds[Kind(shape.name, 1)] for shape in models]).T
    told = depth_and_width(list(models), times_RS, RESAMPLING)
    return told_of_depth(told) | {"dtype": dtype_name(bench.models[bench.sizes.target])}


def told_of_depth(told: DepthAndWidth) -> Row:
    """One size's two ends, and the fit, flat."""
    [size], fit = told.sizes, told.fit
    ratio = size.deepest_over_shallowest
    return {
        "deep": size.deepest,
        "wide": size.shallowest,
        "deep_over_wide": ratio.value,
        "interval": listed(ratio),
        "layer_ms": fit.layer_ms.value,
        "layer_interval_ms": listed(fit.layer_ms),
        "hundred_channels_ms": fit.hundred_channels_ms.value,
        "hundred_channels_interval_ms": listed(fit.hundred_channels_ms),
        "largest_residual": fit.largest_residual,
    }

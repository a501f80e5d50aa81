"""How fast a device trains and decodes: from the measurement that is nearest, else from what is published of it.

Every rate says which it was. A rate of None means that neither is known. Pure; no torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, log
from pathlib import Path

from architectures.shapes import DTYPE_BYTES, NAMED_SHAPES, Shape
from distill.expected_time.devices import Device
from distill.expected_time.figures import AnswerRow, StepRow
from distill.expected_time.lengths import written_answer
from distill.memory import matrix_parameters

ASSUMED_MFU = 0.30  # of a training step, where only the peak is known
ASSUMED_LAUNCH_MS = 30 / 32  # a layer and step, of a decoder that launches every kernel from Python
ASSUMED_FLOOR_SHARE = 0.6  # least time over time of a step that waits for memory and not for launches
DRAFT_LAYER_MS = 0.55  # a layer of a served draft: "Decoding Speculative Decoding" (arXiv 2402.01528), on A100
PRECISION_DTYPES = {"amp_bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True)
class Rate:
    """A speed or a time.

    Attributes:
        value: In the unit its maker says.
        measured: Whether it comes from a measurement of this very kind; else something is assumed.
        words: Where it comes from.
    """

    value: float
    measured: bool
    words: str


def training_flops_per_s(device: Device, source: str, precision: str, student: Shape) -> Rate | None:
    """FLOPs a second of training steps.

    Args:
        device: Where.
        source: "live", "cached" or "none": what the teacher is.
        precision: As distill.precision.
        student: Its shape; of several measurements that of the same student counts, else the first.
    """
    rows = [row for row in of_device(device, "distillation") if row.precision == precision]
    same = [row for row in rows if row.source == source]
    if same or rows:
        row = min(same or rows, key=lambda each: not is_shape(each.student, student))
        kind = {"live": "a live teacher", "cached": "a cached teacher", "none": "no teacher"}[row.source]
        words = f"{tera(row.flops_per_s)}, {row.student} with {kind}"
        return Rate(row.flops_per_s, bool(same), f"measured {words}" if same else f"assumed as {words}")
    return assumed_training(device, precision)


def assumed_training(device: Device, precision: str) -> Rate | None:
    """A share of the device's peak, measured or published."""
    peaks = [row.peak_flops for row in of_device(device, "machine") if row.dtype == PRECISION_DTYPES[precision]]
    peak = max((each for each in peaks if each is not None), default=None)
    published = device.published.peak_flops.get(precision) if device.published else None
    value, which = (published, "published") if peak is None else (peak, "measured")
    if value is None:
        return None
    words = f"assumed {ASSUMED_MFU:.0%} of the {tera(value)} {which} for {PRECISION_DTYPES[precision]}"
    return Rate(ASSUMED_MFU * value, measured=False, words=words)


def answer_tokens_per_s(device: Device, path: str, target: Shape, dtype: str, batch: int) -> Rate | None:
    """Tokens a second of this target's answers, prompts' reading included; None where nobody measured this target."""
    rows = [
        row
        for row in of_device(device, "answers")
        if row.how == "ours" and row.dtype == dtype and is_model(row.model, path, target)
    ]
    if not rows:
        return None
    row = min(rows, key=lambda each: distance(each.batch, batch))
    words = f"measured {row.tokens_per_s:,.0f}/s at batch {row.batch}"
    if row.batch != batch:
        words += f", which stands in for {batch}"
    return Rate(row.tokens_per_s, measured=True, words=words)


def step_s(device: Device, shape: Shape, dtype: str, *, batch: int, context: int) -> Rate | None:
    """Seconds of a decoding step as our decoder takes it: kernels launched one by one."""
    steps = [row for row in of_device(device, "steps") if (row.how, row.tokens, row.dtype) == ("eager", 1, dtype)]
    if steps:
        return scaled_step(device, nearest_step(steps, shape, batch, context), shape, batch, context)
    floor_s = least_step_s(device, shape, dtype, batch, context)
    shares = [
        row
        for row in of_device(device, "answers")
        if row.how == "ours" and row.dtype == dtype and row.floor_share is not None
    ]
    if device.is_processor:  # on a GPU what is above the floor is launches, and no multiple of it
        return None if floor_s is None or not shares else by_floor_share(floor_s, shares, batch)
    if floor_s is None:
        return None
    value_s = max(ASSUMED_LAUNCH_MS / 1e3 * shape.layers, floor_s / ASSUMED_FLOOR_SHARE)
    words = f"assumed {1e3 * value_s:.0f} ms a step, {ASSUMED_LAUNCH_MS:.2f} ms a layer to launch its kernels"
    if value_s > ASSUMED_LAUNCH_MS / 1e3 * shape.layers:
        words = f"assumed {1e3 * value_s:.0f} ms a step, its bytes at {ASSUMED_FLOOR_SHARE:.0%} of the bandwidth"
    return Rate(value_s, measured=False, words=words)


def steps_of_answers(device: Device, count: int, batch: int, most_tokens: int) -> float:
    """Steps that so many answers take in batches, counted in steps of whole batches.

    On a GPU a step of a few rows takes as long as one of all, so a batch takes as many as its longest answer may have;
    on a processor steps take less as rows leave.
    """
    if device.is_processor:
        return count * written_answer(most_tokens) / batch
    return ceil(count / batch) * most_tokens


def nearest_step(rows: Iterable[StepRow], shape: Shape, batch: int, context: int) -> StepRow:
    """The measurement of the same shape, else of the most similar size, at the nearest batch, then context."""

    def order(row: StepRow) -> tuple[float, ...]:
        size = 0.0 if row_is_of(row, shape) else 1 + distance(row.parameters, shape.parameters())
        return size, distance(row.batch, batch), distance(row.context + 1, context + 1)

    return min(rows, key=order)


def scaled_step(device: Device, row: StepRow, shape: Shape, batch: int, context: int) -> Rate:
    """A measured step, as long as this shape at this batch and context makes it.

    On a GPU a step waits for launches, which grow with layers, or for memory, whichever takes longer; on a processor it
    grows with the bytes.
    """
    floor_s = least_step_s(device, shape, row.dtype, batch, context)
    value_s = row.median_ms / 1e3 * shape.layers / row.layers
    if floor_s is not None and row.floor_ms is not None:
        share = row.floor_ms / row.median_ms
        by_bytes_s = floor_s / (share if device.is_processor else max(share, ASSUMED_FLOOR_SHARE))
        value_s = by_bytes_s if device.is_processor else max(value_s, by_bytes_s)
    where = f"{row.median_ms:.3g} ms of {row.shape} at batch {row.batch}, {row.context} tokens"
    if row_is_of(row, shape):
        return Rate(value_s, measured=True, words=f"measured {where}, here {1e3 * value_s:.3g} ms")
    return Rate(value_s, measured=False, words=f"assumed {1e3 * value_s:.3g} ms a step, as {where}, measured")


def by_floor_share(floor_s: float, rows: list[AnswerRow], batch: int) -> Rate:
    """The least time, lengthened as the answers of another model were."""
    row = min(rows, key=lambda each: distance(each.batch, batch))
    assert row.floor_share is not None, "the caller chose those that have one"
    words = (
        f"assumed {1e3 * floor_s / row.floor_share:.3g} ms a step, its bytes at {row.floor_share:.0%} of the bandwidth"
    )
    return Rate(floor_s / row.floor_share, measured=False, words=f"{words} as {row.model} was measured")


def least_step_s(device: Device, shape: Shape, dtype: str, batch: int, context: int) -> float | None:
    """Seconds to read what a step reads: matrices once, keys and values of every row; None without a bandwidth."""
    measured = [row.bandwidth_gb_s for row in of_device(device, "machine") if row.bandwidth_gb_s is not None]
    bandwidth = max(measured, default=device.published.bandwidth_gb_s if device.published else None)
    if bandwidth is None:
        return None
    read = matrix_parameters(shape) * DTYPE_BYTES[dtype] + batch * context * shape.kv_bytes_per_token(dtype)
    return read / (bandwidth * 1e9)


def served_step_ms(device: Device, draft: Shape, dtype: str = "bfloat16") -> Rate:
    """Milliseconds of a draft's step as an engine would serve it: captured, one row, one token."""
    rows = [
        row
        for row in of_device(device, "steps")
        if (row.how, row.tokens, row.batch, row.dtype) == ("captured", 1, 1, dtype) and row_is_of(row, draft)
    ]
    if rows:
        row = min(rows, key=lambda each: each.context)
        words = f"measured on {device.name}: captured, batch 1, {row.context} tokens"
        return Rate(row.median_ms, measured=True, words=words)
    head_bytes = draft.vocab * draft.hidden * DTYPE_BYTES[dtype]
    bandwidth = device.published.bandwidth_gb_s if device.published else 3350
    value = DRAFT_LAYER_MS * draft.layers + head_bytes / (bandwidth * 1e6)
    words = f"{DRAFT_LAYER_MS} ms a layer, as published for A100 under DeepSpeed, and the reading of the output head"
    return Rate(value, measured=False, words=words)


def of_device(device: Device, stage: str) -> tuple:
    """The measurements of a stage; none where nobody measured."""
    return () if device.figures is None else getattr(device.figures, stage)


def is_shape(name: str, shape: Shape) -> bool:
    """Whether a name is that of a published shape, and it is this one."""
    return name in NAMED_SHAPES and NAMED_SHAPES[name].shape == shape


def is_model(name: str, path: str, shape: Shape) -> bool:
    """Whether a measured model is the recipe's: the last part of its path, or a published shape."""
    return name.casefold() == Path(path).name.casefold() or is_shape(name, shape)


def row_is_of(row: StepRow, shape: Shape) -> bool:
    """Whether a measured shape is this one."""
    return (row.layers, row.hidden, row.parameters) == (shape.layers, shape.hidden, shape.parameters())


def distance(one: float, other: float) -> float:
    """How many times larger one is than the other, either way, as a logarithm."""
    return abs(log(one / other))


def tera(flops: float) -> str:
    """FLOPs a second for people."""
    return f"{flops / 1e12:,.0f} TFLOP/s" if flops >= 1e13 else f"{flops / 1e12:.2g} TFLOP/s"

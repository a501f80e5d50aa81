"""How fast a device trains and decodes: from the measurement that is nearest, else from what is published of it.

Every rate says which it was. A rate of None means that neither is known. Pure; no torch.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, log

from architectures.families import FAMILIES
from architectures.settings.kinds import HowAnswered
from architectures.shapes.shape import DTYPE_BYTES, NAMED_SHAPES, Shape
from distill.estimates.memory import matrix_parameters
from distill.expected_time.device_figures import AnswerRow, StepRow
from distill.expected_time.devices import Device
from distill.expected_time.lengths import written_answer

ASSUMED_MFU = 0.30  # of a training step, where only the peak is known
ASSUMED_LAUNCH_MS = 30 / 32  # a layer and step, of a decoder that launches every kernel from Python
ASSUMED_FLOOR_SHARE = 0.6  # least time over time of a step that waits for memory and not for launches
DRAFT_LAYER_MS = 0.55  # a layer of a served draft: "Decoding Speculative Decoding" (arXiv 2402.01528), on A100
CARRIED_TARGET = ("target", "SmolLM2-135M-Instruct")  # what the bench's rows call the model it brings along
SMOLLM2_135M = Shape(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocab=49152, tied=True)
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


def training_flops_per_s(
    device: Device, source: str, precision: str, student: Shape, *, packing: bool = False
) -> Rate | None:
    """FLOPs a second of training steps.

    Of several measurements the one of the same student counts, then of the same packing, then of sequences that differ
    in length, as a recipe's do; then the first.

    Args:
        device: Where.
        source: "live", "cached" or "none": what the teacher is.
        precision: As distill.precision.
        student: Its shape.
        packing: As distill.packing.
    """
    rows = [row for row in of_device(device, "distillation") if row.precision == precision]
    same = [row for row in rows if row.source == source]
    if same or rows:
        row = min(
            same or rows,
            key=lambda each: (shape_named(each.student) != student, each.packing != packing, not each.mixed_lengths),
        )
        kind = {"live": "a live teacher", "cached": "a cached teacher", "none": "no teacher"}[row.source]
        words = f"{tera(row.flops_per_s)}, {row.student} with {kind}"
        return Rate(row.flops_per_s, bool(same), f"measured {words}" if same else f"assumed as {words}")
    return assumed_training(device, precision)


def assumed_training(device: Device, precision: str) -> Rate | None:
    """A share of the device's peak."""
    peak = peak_flops_per_s(device, precision)
    if peak is None:
        return None
    return Rate(ASSUMED_MFU * peak.value, measured=False, words=f"assumed {ASSUMED_MFU:.0%} of the {peak.words}")


def peak_flops_per_s(device: Device, precision: str) -> Rate | None:
    """The most FLOPs a second of matrix products; None where nobody says."""
    dtype = PRECISION_DTYPES[precision]
    measured = [row.peak_flops for row in of_device(device, "machine") if row.dtype == dtype]
    published = device.published.peak_flops.get(precision) if device.published else None
    return highest(measured, published, lambda value, which: f"{tera(value)} {which} for {dtype}")


def bandwidth_gb_s(device: Device) -> Rate | None:
    """GB a second that memory is read at; None where nobody says."""
    measured = [row.bandwidth_gb_s for row in of_device(device, "machine")]
    published = device.published.bandwidth_gb_s if device.published else None
    return highest(measured, published, lambda value, which: f"{value:,.0f} GB/s {which}")


def highest(
    measured: Iterable[float | None], published: float | None, words: Callable[[float, str], str]
) -> Rate | None:
    """The highest of what was measured, else what is published."""
    best = max((each for each in measured if each is not None), default=None)
    if best is not None:
        return Rate(best, measured=True, words=words(best, "measured"))
    return None if published is None else Rate(published, measured=False, words=words(published, "published"))


def step_s(
    device: Device, shape: Shape, dtype: str, *, batch: int, context: int, captured: bool = False
) -> Rate | None:
    """Seconds of a decoding step as our decoder takes it: kernels launched one by one, or captured if known."""
    floor_s = least_step_s(device, shape, dtype, batch, context)
    known_steps = (measured_steps(device, dtype, "captured") if captured else []) or measured_steps(device, dtype)
    if known_steps:
        return scaled_step(device, nearest_step(known_steps, shape, batch, context), shape, floor_s)
    if device.is_processor or floor_s is None:
        return None
    launches_s, bytes_s = ASSUMED_LAUNCH_MS / 1e3 * shape.layers, floor_s / ASSUMED_FLOOR_SHARE
    value_s = max(launches_s, bytes_s)
    by_launches = f"{ASSUMED_LAUNCH_MS:.2f} ms a layer to launch its kernels"
    by_bytes = f"its bytes at {ASSUMED_FLOOR_SHARE:.0%} of the bandwidth"
    words = f"assumed {1e3 * value_s:.3g} ms a step, {by_launches if launches_s >= bytes_s else by_bytes}"
    return Rate(value_s, measured=False, words=words)


@dataclass(frozen=True)
class MeasuredStep:
    """A step of one token a row that was measured, whichever stage of the bench did.

    Attributes:
        name: Of the model.
        layers: Of the model.
        parameters: Of the model.
        batch: Rows.
        context: Tokens in each before it.
        seconds: It took.
        share: The least it could have taken over that; None where that is not known.
    """

    name: str
    layers: int
    parameters: int
    batch: int
    context: int
    seconds: float
    share: float | None

    def is_of(self, shape: Shape) -> bool:
        """Whether the model has this shape."""
        return (self.layers, self.parameters) == (shape.layers, shape.parameters())


def measured_steps(device: Device, dtype: str, how: str = "eager") -> list[MeasuredStep]:
    """Steps of our decoder by the stage `steps`, and those behind the prompts by the stage `answers`."""
    written = "ours" if how == "eager" else how  # as that stage names them
    steps = [row for row in of_device(device, "steps") if (row.how, row.tokens, row.dtype) == (how, 1, dtype)]
    answers = [row for row in of_device(device, "answers") if (row.how, row.dtype) == (written, dtype)]
    return [*map(of_step, steps), *(of_answers(row) for row in answers if shape_named(row.model) is not None)]


def of_step(row: StepRow) -> MeasuredStep:
    """A row of the stage `steps`."""
    share = None if row.floor_ms is None else row.floor_ms / row.median_ms
    return MeasuredStep(row.shape, row.layers, row.parameters, row.batch, row.context, row.median_ms / 1e3, share=share)


def of_answers(row: AnswerRow) -> MeasuredStep:
    """A row of the stage `answers`; where steps were not told apart, the reading of prompts is counted in them."""
    shape = shape_named(row.model)
    assert shape is not None, "the caller leaves others out"
    seconds = row.batch / row.tokens_per_s if row.step_ms is None else row.step_ms / 1e3
    context = row.prompt_tokens + row.new_tokens // 2
    return MeasuredStep(row.model, shape.layers, shape.parameters(), row.batch, context, seconds, share=row.floor_share)


def nearest_step(steps: Iterable[MeasuredStep], shape: Shape, batch: int, context: int) -> MeasuredStep:
    """The measurement of the same shape, else of the most similar size, at the nearest batch, then context."""

    def order(step: MeasuredStep) -> tuple[float, ...]:
        size = 0.0 if step.is_of(shape) else 1 + distance(step.parameters, shape.parameters())
        return size, distance(step.batch, batch), distance(step.context + 1, context + 1)

    return min(steps, key=order)


def scaled_step(device: Device, step: MeasuredStep, shape: Shape, floor_s: float | None) -> Rate:
    """A measured step, as long as this shape at this batch and context makes it.

    On a GPU a step waits for launches, which grow with layers, or for memory, whichever takes longer. On a processor it
    grows with the bytes: by what more of them take for the same model, in proportion to them for another.

    Args:
        device: Where.
        step: The measurement.
        shape: Of the model whose step is wanted.
        floor_s: The least that takes; None where that is not known, and layers alone count.
    """
    value_s = step.seconds * shape.layers / step.layers
    if floor_s is not None and step.share is not None:
        if not device.is_processor:
            value_s = max(value_s, floor_s / max(step.share, ASSUMED_FLOOR_SHARE))
        elif step.is_of(shape):
            value_s = max(floor_s, value_s + floor_s - step.share * step.seconds)
        else:
            value_s = floor_s / step.share
    where = f"{1e3 * step.seconds:.3g} ms measured of {step.name} at batch {step.batch}, {step.context} tokens"
    if step.is_of(shape):
        return Rate(value_s, measured=True, words=f"{1e3 * value_s:.3g} ms a step, from {where}")
    return Rate(value_s, measured=False, words=f"assumed {1e3 * value_s:.3g} ms a step, from {where}")


def are_captured(device: Device, target: Shape, asked: HowAnswered) -> bool:
    """Whether a target's answers are decoded by captured steps there (eval/steps/answer_steps.py)."""
    return asked != "eager" and not device.is_processor and FAMILIES[target.family].by_rows


def steps_of_answers(device: Device, count: int, batch: int, most_tokens: int) -> float:
    """Steps that so many answers take in batches, counted in steps of whole batches.

    On a GPU a step of a few rows takes as long as one of all, so a batch takes as many as its longest answer may have;
    on a processor steps take less as rows leave.
    """
    if device.is_processor:
        return count * written_answer(most_tokens) / batch
    return ceil(count / batch) * most_tokens


def least_step_s(device: Device, shape: Shape, dtype: str, batch: int, context: int) -> float | None:
    """Seconds to read what a step reads: matrices once, keys and values of every row; None without a bandwidth."""
    bandwidth = bandwidth_gb_s(device)
    if bandwidth is None:
        return None
    read = matrix_parameters(shape) * DTYPE_BYTES[dtype] + batch * context * shape.kv_bytes_per_token(dtype)
    return read / (bandwidth.value * 1e9)


def served_step_ms(device: Device, draft: Shape, dtype: str = "bfloat16") -> Rate:
    """Milliseconds of a draft's step as an engine would serve it: captured, one row, one token."""
    rows = [
        row
        for row in of_device(device, "steps")
        if (row.how, row.tokens, row.batch, row.dtype) == ("captured", 1, 1, dtype) and of_step(row).is_of(draft)
    ]
    if rows:
        row = min(rows, key=lambda each: each.context)
        words = f"measured on {device.name}: captured, batch 1, {row.context} tokens"
        return Rate(row.median_ms, measured=True, words=words)
    head_bytes = draft.head_rows * draft.hidden * DTYPE_BYTES[dtype]
    bandwidth = device.published.bandwidth_gb_s if device.published else 3350
    value = DRAFT_LAYER_MS * draft.layers + head_bytes / (bandwidth * 1e6)
    words = f"{DRAFT_LAYER_MS} ms a layer, as published for A100 under DeepSpeed, and the reading of the output head"
    return Rate(value, measured=False, words=words)


def of_device(device: Device, stage: str) -> tuple:
    """The measurements of a stage; none where nobody measured."""
    return () if device.figures is None else getattr(device.figures, stage)


def shape_named(name: str) -> Shape | None:
    """The shape a bench calls by this name: a published one, or the target it carries."""
    if name in CARRIED_TARGET:
        return SMOLLM2_135M
    return NAMED_SHAPES[name].shape if name in NAMED_SHAPES else None


def distance(first: float, second: float) -> float:
    """How many times larger one is than the other, either way, as a logarithm."""
    return abs(log(first / second))


def tera(flops: float) -> str:
    """FLOPs a second for people."""
    return f"{flops / 1e12:,.0f} TFLOP/s" if flops >= 1e13 else f"{flops / 1e12:.2g} TFLOP/s"

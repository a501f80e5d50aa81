"""What drafts are worth by the least that their steps can take on a device. Nothing of it is measured; no torch.

A step reads its matrices and the keys and values before it, and multiplies: it takes no less than the longer of these
two at the device's bandwidth and peak. EAGER adds that kernels are launched one by one, which is no bound but what
`check` assumes. Times are lower bounds, and their ratio is none: where a draft's step stays further above its floor
than the target's does, the draft costs more than is told here.
"""

from dataclasses import dataclass, replace
from math import log2

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.shapes.requested_shape import WIDTHS
from architectures.shapes.shape import Shape
from distill.expected_time.devices import Device, known_slugs
from distill.expected_time.rates import ASSUMED_LAUNCH_MS, least_step_s, peak_flops_per_s
from eval.acceptance.speedup import StepTimes
from eval.predictions.ranking import equal_alpha, iid_promise

CONTEXT = 128  # tokens before a step, here and where `choose` measures
LOOKAHEADS = range(1, 17)
ALPHAS = (0.5, 0.6, 0.7, 0.8)  # acceptances that drafts are compared at, where none is known
KEPT_SHARE = 0.25  # of the rows of a whole head: what FR-Spec keeps (arXiv 2502.14856)
PLAIN_SHARE = 0.9  # of its acceptance: where a draft is as fast with so little, its head is plainly too large
PEAK_OF = {"bfloat16": "amp_bf16", "float16": "amp_bf16", "float32": "fp32"}  # both halves are as fast


@dataclass(frozen=True)
class Way:
    """How the kernels of a step come to run.

    Attributes:
        name: In tables.
        launch_ms: A layer and step, that a step takes at least.
    """

    name: str
    launch_ms: float


FLOOR = Way("floor", 0.0)  # where launches cost nothing: captured in a CUDA graph, or on a processor
EAGER = Way("eager", ASSUMED_LAUNCH_MS)


def ways_of(device: Device) -> tuple[Way, ...]:
    return (FLOOR,) if device.is_processor else (FLOOR, EAGER)


def floor_s(device: Device, shape: Shape, dtype: str, *, tokens: int, way: Way = FLOOR) -> float:
    """Seconds that a step of one row takes at least.

    Raises:
        UserError: If nobody says how fast the device reads, or multiplies in this number type.
    """
    read_s = least_step_s(device, shape, dtype, batch=1, context=CONTEXT)
    peak = peak_flops_per_s(device, PEAK_OF[dtype])
    if read_s is None or peak is None:
        raise UserError(
            f"{device.name}: its bandwidth, or its peak in {dtype}, is not known, so nobody knows the least a step "
            f"takes. Name one of {', '.join(known_slugs())}, or set eval.dtype to a type that was measured."
        )
    multiplied_s = tokens * shape.flops_per_token(CONTEXT) / peak.value
    return max(read_s, multiplied_s, way.launch_ms / 1e3 * shape.layers)


def floor_times(device: Device, target: Shape, draft: Shape, dtype: str, way: Way = FLOOR) -> StepTimes:
    """The steps of a pair, each at its least."""

    def step(shape: Shape, tokens: int) -> float:
        return floor_s(device, shape, dtype, tokens=tokens, way=way)

    return StepTimes(
        target_s=step(target, 1),
        draft_s=step(draft, 1),
        draft_two_s=step(draft, 2),
        verify_s={lookahead: step(target, lookahead + 1) for lookahead in LOOKAHEADS},
    )


def best_by_alpha(steps: StepTimes) -> dict[float, tuple[int, float]]:
    """The best lookahead at each of ALPHAS, and what it is worth."""
    return {alpha: iid_promise(alpha, steps) for alpha in ALPHAS}


def as_fast(steps: StepTimes, reference: StepTimes) -> dict[float, float | None]:
    """For each of ALPHAS, had by the reference: what makes a draft of these steps as fast; None if nothing does."""
    return {alpha: equal_alpha(speedup, steps) for alpha, (_, speedup) in best_by_alpha(reference).items()}


def wanted_head(device: Device, target: Shape, draft: Shape, dtype: str) -> int | None:
    """How many ids a draft had better output that outputs them all; None where too little speaks for fewer.

    They are a quarter, if the draft is then as fast with PLAIN_SHARE of its acceptance, whichever of ALPHAS that was:
    so much a quarter that was chosen by counting hardly loses.
    """
    if draft.head_vocab:
        return None
    rows = quarter_head(draft.vocab)
    small, whole = (floor_times(device, target, each, dtype) for each in (draft.with_head_of(rows), draft))
    needed = as_fast(small, whole)
    return rows if all(each is not None and each <= PLAIN_SHARE * alpha for alpha, each in needed.items()) else None


def neighbours(draft: Shape, source: Shape) -> dict[str, Shape]:
    """The shapes that differ from a draft's in one thing: depth, width, or the ids it can output.

    Args:
        draft: As a recipe has it.
        source: What it is cut out of, which bounds all three.
    """
    shapes = {"a layer less": replace(draft, layers=draft.layers - 1), **of_another_width(draft, source)}
    shapes["a layer more"] = replace(draft, layers=draft.layers + 1)
    if not source.head_vocab:
        shapes |= of_another_head(draft, source)
    return {name: shape for name, shape in shapes.items() if 1 <= shape.layers <= source.layers}


def of_another_width(draft: Shape, source: Shape) -> dict[str, Shape]:
    """All of the source's width where the draft is narrower, else half the neurons; none of a family of one width."""
    whole = {name: getattr(source, name) for name in WIDTHS}
    if any(getattr(draft, name) != size for name, size in whole.items()):
        return {"the whole width": replace(draft, **whole)}
    if not FAMILIES[draft.family].width:
        return {}
    return {"half the neurons": replace(draft, intermediate=draft.intermediate // 2)}


def of_another_head(draft: Shape, source: Shape) -> dict[str, Shape]:
    """The whole head where the draft's is small, else a quarter of it."""
    if draft.head_vocab:
        return {"the whole head": replace(draft, head_vocab=0, tied=source.tied)}
    rows = quarter_head(draft.vocab)
    return {f"{rows:,} ids": draft.with_head_of(rows)}


def quarter_head(vocab: int) -> int:
    """The power of two that is nearest to KEPT_SHARE of the ids."""
    return 2 ** round(log2(KEPT_SHARE * vocab))

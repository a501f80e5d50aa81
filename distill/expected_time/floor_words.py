"""What the least times of steps say of a recipe, in the words of its header and as a row of a table. Pure; no torch."""

from collections.abc import Iterable, Mapping

from architectures.shapes.shape import Shape
from distill.expected_time.devices import Device
from distill.expected_time.floors import ALPHAS, EAGER, as_fast, best_by_alpha, floor_times, neighbours, ways_of
from eval.acceptance.speedup import StepTimes, break_even_alpha

COMPARED_AT = 0.6  # of ALPHAS: the acceptance that neighbours are held against
FIRST, LAST = 1, 8  # lookaheads of which is told what they need
COLUMNS = (
    "recipe", "target, least ms", "draft", "cost ratio", "where launches decide", f"α it needs at {FIRST}",
    f"at {LAST}", f"best at α {COMPARED_AT}", f"as fast as α {COMPARED_AT} here",
)  # fmt: skip


def floor_words(device: Device, target: Shape, draft: Shape, source: Shape, dtype: str) -> str:
    """A step, from which acceptance it pays, the best lookaheads, and what its neighbours must be accepted with."""
    steps = floor_times(device, target, draft, dtype)
    lookaheads, speeds = zip(*best_by_alpha(steps).values(), strict=True)
    near = {name: floor_times(device, target, shape, dtype) for name, shape in neighbours(draft, source).items()}
    return (
        f"unmeasured, least times on one {device.name}: a step {1e3 * steps.draft_s:.2f} ms, {steps.cost_ratio:.3f} of "
        f"the target's{eager_words(device, target, draft, dtype)}. Pays from alpha {needed_words(steps, FIRST)} at "
        f"lookahead {FIRST}, {needed_words(steps, LAST)} at {LAST}. Best lookaheads at alpha {listed(ALPHAS)}: "
        f"{listed(lookaheads)}, worth {listed(f'{speed:.2f}x' for speed in speeds)}. As fast as alpha {COMPARED_AT} "
        f"here: {near_words(near, steps)}."
    )


def floor_cells(device: Device, target: Shape, draft: Shape, source: Shape, dtype: str) -> list[str]:
    """The same under COLUMNS, without the first."""
    steps = floor_times(device, target, draft, dtype)
    eager = floor_times(device, target, draft, dtype, EAGER)
    lookahead, speed = best_by_alpha(steps)[COMPARED_AT]
    near = {name: floor_times(device, target, shape, dtype) for name, shape in neighbours(draft, source).items()}
    return [
        f"{1e3 * steps.target_s:.2f}",
        f"{1e3 * steps.draft_s:.2f}",
        f"{steps.cost_ratio:.3f}",
        f"{eager.cost_ratio:.3f}",
        needed_words(steps, FIRST),
        needed_words(steps, LAST),
        f"{lookahead}: {speed:.2f}x",
        near_words(near, steps),
    ]


def eager_words(device: Device, target: Shape, draft: Shape, dtype: str) -> str:
    """The cost ratio where every kernel is launched by itself, if that is another way there."""
    if EAGER not in ways_of(device):
        return ""
    return f" ({floor_times(device, target, draft, dtype, EAGER).cost_ratio:.3f} where launches decide)"


def needed_words(steps: StepTimes, lookahead: int) -> str:
    """From which acceptance it pays."""
    needed = break_even_alpha(lookahead, steps)
    return "none" if needed is None else f"{needed:.2f}"


def near_words(near: Mapping[str, StepTimes], steps: StepTimes) -> str:
    return ", ".join(f"{name} {equal_words(name, as_fast(each, steps)[COMPARED_AT])}" for name, each in near.items())


def equal_words(name: str, alpha: float | None) -> str:
    """An acceptance; of a head that outputs some ids alone also as a share, which its ids must cover at least."""
    if alpha is None:
        return "never"
    return f"{alpha:.2f}" + (f" ({alpha / COMPARED_AT:.0%} of it)" if name.endswith(" ids") else "")


def listed(values: Iterable[object]) -> str:
    return ", ".join(str(each) for each in values)

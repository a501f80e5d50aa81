"""What floors say of candidates and of a recipe's own shape, as tables and sentences. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from architectures.files.disk import size
from architectures.pages.blocks import Block, Section, Sentence, Table
from architectures.shapes.shape import Shape
from distill.checking.planned_cut import Cut
from distill.choose.shapes.candidates import Candidate
from distill.expected_time.devices import Device
from distill.expected_time.floors import (
    ALPHAS,
    CONTEXT,
    EAGER,
    FLOOR,
    PEAK_OF,
    PLAIN_SHARE,
    Way,
    as_fast,
    best_by_alpha,
    floor_times,
    neighbours,
    wanted_head,
    ways_of,
)
from distill.expected_time.rates import bandwidth_gb_s, peak_flops_per_s
from distill.recipe.recipe import Recipe
from eval.acceptance.speedup import StepTimes, break_even_alpha

SHOWN = (1, 2, 4, 8)  # lookaheads of the break-even table
UNMEASURED = (
    "UNMEASURED: lower bounds of times, from bytes and FLOPs alone. Real steps take longer, small ones perhaps by a "
    "larger factor: a ratio of two bounds is no bound. Steps measured on the device itself count more."
)
TITLES = {
    FLOOR: "kernels that cost nothing to launch (as in CUDA graphs)",
    EAGER: f"kernels launched one by one (assumed: {EAGER.launch_ms:.2f} ms a layer, or the floor if that is longer)",
}


@dataclass(frozen=True)
class Floored:
    """A candidate, the least its steps take, and what its run costs.

    Attributes:
        candidate: The shape.
        steps: Of it and the target, by the way kernels come to run.
        hours: Of its whole run on the device, as `check` estimates them; None where they are not known.
        memory_bytes: Of one process at its fullest, likewise.
    """

    candidate: Candidate
    steps: Mapping[Way, StepTimes]
    hours: float | None
    memory_bytes: int


def floors_page(recipe: Recipe, cut: Cut, device: Device, floored: Sequence[Floored]) -> list[Block]:
    """Costs, then worth for each way that kernels may run, then the recipe's own shape among its neighbours."""
    worth = [worth_section(recipe, cut, device, floored, way) for way in ways_of(device)]
    return [cost_section(recipe, device, floored), *worth, *head_sentences(recipe, cut, device)]


def cost_section(recipe: Recipe, device: Device, floored: Sequence[Floored]) -> Section:
    """What steps of the target and of candidates take at least, and what the run of each costs."""
    dtype, target = recipe.eval.dtype, floored[0].steps[FLOOR]
    bandwidth, peak = bandwidth_gb_s(device), peak_flops_per_s(device, PEAK_OF[dtype])
    assert bandwidth is not None  # there are floors
    assert peak is not None
    last = max(target.verify_s)
    title = f"Least times of steps on {device.name}: {dtype}, batch 1, {CONTEXT} tokens of context"
    steps = (
        f"A step of the target takes {1e3 * target.target_s:.2f} ms at least, a verification of {last + 1} tokens "
        f"{1e3 * target.verify_s[last]:.2f} ms ({bandwidth.words}, {peak.words}). Hours and memory are what "
        "`widedraft check` estimates of each run."
    )
    ratios = [f"cost ratio, {way.name}" for way in ways_of(device)]
    columns = ("candidate", "layers × hidden", "parameters", "hours", "memory", "least ms a step", *ratios)
    costs = Table(columns, [cost_cells(each) for each in floored])
    return Section(title, [Sentence(UNMEASURED), Sentence(steps), costs])


def cost_cells(floored: Floored) -> tuple[str, ...]:
    shape = floored.candidate.shape
    return (
        floored.candidate.name,
        f"{shape.layers} × {shape.hidden}",
        f"{shape.parameters() / 1e6:.1f}M",
        "unknown" if floored.hours is None else f"{floored.hours:.1f}",
        size(floored.memory_bytes).strip(),
        f"{1e3 * floored.steps[FLOOR].draft_s:.3f}",
        *(f"{steps.cost_ratio:.3f}" for steps in floored.steps.values()),
    )


def worth_section(recipe: Recipe, cut: Cut, device: Device, floored: Sequence[Floored], way: Way) -> Section:
    """Which acceptance pays, at which lookahead, and what deeper, wider and smaller-headed drafts must bring."""
    steps = {each.candidate.name: each.steps[way] for each in floored}
    own = floor_times(device, cut.target, cut.draft, recipe.eval.dtype, way)
    near = {
        name: floor_times(device, cut.target, shape, recipe.eval.dtype, way)
        for name, shape in neighbours(cut.draft, cut.source).items()
    }
    blocks = [
        Table(
            worth_columns(),
            [worth_cells(name, each) for name, each in steps.items()],
            "From which acceptance each pays at a lookahead, and the best lookahead if a token is kept with chance α:",
        ),
        *preferred_table(steps, preferred(floored, way)),
        *covering_table(floored, way),
        Table(
            alpha_columns(),
            [needed_cells(name, each, own) for name, each in near.items()],
            f"Beside the recipe's own {shape_words(cut.draft)}, its neighbours are as fast with:",
        ),
        *beyond_sentences(recipe, own),
    ]
    return Section(f"With {TITLES[way]}", blocks)


def preferred_table(steps: Mapping[str, StepTimes], first: str) -> list[Table]:
    """Which candidate is the fastest at equal acceptance, and what the others must have more; nothing of one alone."""
    others = [needed_cells(name, each, steps[first]) for name, each in steps.items() if name != first]
    if not others:
        return []
    told = f"At equal acceptance {first} is the fastest. To be as fast as it, the others need:"
    return [Table(alpha_columns(), others, told)]


def preferred(floored: Sequence[Floored], way: Way) -> str:
    """The candidate whose step takes least; of several the one that outputs most ids."""
    best = min(floored, key=lambda each: (each.steps[way].draft_s, -each.candidate.shape.head_rows))
    return best.candidate.name


def worth_columns() -> list[str]:
    return ["candidate", *(f"pays at {each} from" for each in SHOWN), *(f"at α {alpha}" for alpha in ALPHAS)]


def worth_cells(name: str, steps: StepTimes) -> list[str]:
    needed = [break_even_alpha(lookahead, steps) for lookahead in SHOWN]
    return [
        name,
        *("none" if each is None else f"{each:.2f}" for each in needed),
        *(f"{lookahead}: {speed:.2f}x" for lookahead, speed in best_by_alpha(steps).values()),
    ]


def alpha_columns() -> list[str]:
    """Of the acceptances that the reference has."""
    return ["", *(f"beside α {alpha}" for alpha in ALPHAS)]


def needed_cells(name: str, steps: StepTimes, reference: StepTimes) -> list[str]:
    """What acceptance makes a draft as fast as the reference, and how much more or less that is."""
    return [name, *(needed_words(alpha, each) for alpha, each in as_fast(steps, reference).items())]


def needed_words(alpha: float, needed: float | None) -> str:
    """An acceptance, and what it is more or less than another."""
    if needed is None:
        return "none suffices"
    more = round(needed - alpha, 2)
    return f"{needed:.2f} ({more:+.2f})" if more else f"{needed:.2f}"


def covering_table(floored: Sequence[Floored], way: Way) -> list[Table]:
    """What the ids of small heads must cover, where candidates of a depth differ in theirs alone."""
    whole = {each.candidate.shape.layers: each.steps[way] for each in floored if not each.candidate.shape.head_vocab}
    small = [each for each in floored if each.candidate.shape.head_vocab and each.candidate.shape.layers in whole]
    if not small:
        return []
    rows = [
        [each.candidate.name, *covering_cells(as_fast(each.steps[way], whole[each.candidate.shape.layers]))]
        for each in small
    ]
    return [Table(alpha_columns(), rows, "A small head pays where its ids cover more of the target's text than:")]


def covering_cells(needed: Mapping[float, float | None]) -> list[str]:
    """The share of the whole head's acceptance that must be left; a smaller head is never slower."""
    return ["" if each is None else f"{each / alpha:.1%}" for alpha, each in needed.items()]


def shape_words(draft: Shape) -> str:
    """A draft's depth and head."""
    head = f", {draft.head_vocab:,} ids" if draft.head_vocab else ""
    return f"{draft.layers} × {draft.hidden}{head}"


def head_sentences(recipe: Recipe, cut: Cut, device: Device) -> list[Sentence]:
    """That the recipe's whole head has rows which cost more than they bring, where floors decide."""
    rows = wanted_head(device, cut.target, cut.draft, recipe.eval.dtype)
    if rows is None or cut.source.head_vocab:
        return []
    told = (
        f"The recipe's head says all {cut.draft.vocab:,} ids. Where floors decide, one of {rows:,} is as fast with "
        f"{PLAIN_SHARE:.0%} of the acceptance or less at each α: set architecture.vocabulary={{size: {rows}}} "
        "unless an engine needs the whole head (docs/engines.md)."
    )
    return [Sentence(told)]


def beyond_sentences(recipe: Recipe, own: StepTimes) -> list[Sentence]:
    """The best lookaheads that the recipe's scorecard would not look at."""
    first, last = min(recipe.eval.lookaheads), max(recipe.eval.lookaheads)
    beyond = {alpha: each for alpha, (each, _) in best_by_alpha(own).items() if not first <= each <= last}
    if not beyond:
        return []
    told = ", ".join(f"{lookahead} at α {alpha}" for alpha, lookahead in beyond.items())
    wanted = f"eval.lookaheads={sorted({*recipe.eval.lookaheads, *beyond.values()})}"
    return [Sentence(f"Beyond eval.lookaheads, which are {first} to {last}: {told}. Set {wanted}.")]

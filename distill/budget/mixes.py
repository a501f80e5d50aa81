"""What a budget is worth, and the cheapest one that is worth enough. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from scipy.optimize import root_scalar

from distill.budget.costs import Costs
from distill.budget.law import Budget, Law
from eval.acceptance.speedup import StepTimes, best_lookahead, iid_tau, predicted_speedup, root_in_unit

LEAST_TOKENS, MOST_TOKENS = 1e3, 1e9  # of answers that a mix is looked for in
READINGS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
TEXT_PARTS = (0.0, 0.25, 0.5, 1.0)  # of the most text that was trained on


@dataclass(frozen=True)
class Laws:
    """A law for each lookahead, and how far the trainings behind them reach.

    Attributes:
        by_lookahead: The laws.
        most_tokens: Distinct answer tokens of any training.
        most_epochs: Readings of any.
        most_text: Tokens of text of any.
    """

    by_lookahead: Mapping[int, Law]
    most_tokens: float
    most_epochs: float
    most_text: float


@dataclass(frozen=True)
class Mix:
    """A budget with what it is worth and takes.

    Attributes:
        budget: The mix.
        lookahead: At which it is fastest.
        tau: Tokens per round there.
        speedup: Over the target alone.
        seconds: Of answers and training.
    """

    budget: Budget
    lookahead: int
    tau: float
    speedup: float
    seconds: float


def valued(budget: Budget, laws: Laws, steps: StepTimes, costs: Costs) -> Mix:
    """What a budget is worth at the lookahead that is best for it."""
    taus = {lookahead: law.tau(budget) for lookahead, law in laws.by_lookahead.items() if lookahead in steps.verify_s}
    speeds = {
        lookahead: predicted_speedup(tau, full_rate(tau, lookahead), lookahead, steps)
        for lookahead, tau in taus.items()
    }
    best = best_lookahead(speeds)
    return Mix(budget, best, taus[best], speeds[best], costs.seconds(budget))


def full_rate(tau: float, lookahead: int) -> float:
    """The share of rounds that keep everything, if tokens are kept independently: what catching up is reckoned with."""
    alpha = root_in_unit(lambda each: iid_tau(each, lookahead) - tau)
    return 1.0 if alpha is None else alpha**lookahead


def shapes_mixes(shape: Budget, laws: Laws) -> Iterator[Budget]:
    """The shape with every number of readings and amount of text that trainings reached."""
    readings = [epochs for epochs in READINGS if epochs <= laws.most_epochs]
    texts = sorted({part * laws.most_text for part in TEXT_PARTS})
    for epochs, text_tokens in product(readings, texts):
        yield replace(shape, epochs=epochs, text_tokens=text_tokens)


def cheapest(shape: Budget, goal: float, laws: Laws, steps: StepTimes, costs: Costs) -> Mix | None:
    """The mix of a shape that is worth so much in the fewest seconds; None if none is, with whatever tokens.

    Args:
        shape: Layers and ids; the rest of it is not looked at.
        goal: Speed-up that is wanted.
        laws: Of this target.
        steps: Of the shape and its target.
        costs: Of this machine.
    """
    mixes = [met for mix in shapes_mixes(shape, laws) if (met := least_answers(mix, goal, laws, steps, costs))]
    return min(mixes, key=lambda mix: mix.seconds, default=None)


def least_answers(mix: Budget, goal: float, laws: Laws, steps: StepTimes, costs: Costs) -> Mix | None:
    """The mix with as few answers as are worth so much; None if MOST_TOKENS are not."""

    def value(tokens: float) -> Mix:
        return valued(replace(mix, answer_tokens=tokens), laws, steps, costs)

    if value(MOST_TOKENS).speedup < goal:
        return None
    if value(LEAST_TOKENS).speedup >= goal:
        return value(LEAST_TOKENS)
    solution = root_scalar(lambda tokens: value(tokens).speedup - goal, bracket=(LEAST_TOKENS, MOST_TOKENS), rtol=1e-6)
    return value(solution.root * (1 + 1e-5))  # on the side that is worth it


def fastest_within(
    shapes: Mapping[str, Budget], seconds: float, laws: Laws, steps: Mapping[str, StepTimes], costs: Costs
) -> tuple[str, Mix] | None:
    """The shape and mix that is fastest of those that take no longer; None if text alone takes longer than that.

    Args:
        shapes: By name.
        seconds: Of answers and training.
        laws: Of this target.
        steps: Of every shape.
        costs: Of this machine.
    """
    valued_mixes = [
        (name, valued(filled, laws, steps[name], costs))
        for name, shape in shapes.items()
        for mix in shapes_mixes(shape, laws)
        if (filled := filling(mix, seconds, costs)) is not None
    ]
    return max(valued_mixes, key=lambda named_mix: named_mix[1].speedup, default=None)


def filling(mix: Budget, seconds: float, costs: Costs) -> Budget | None:
    """The mix with as many answers as there is time for; None if there is none."""
    left_s = seconds - costs.seconds(replace(mix, answer_tokens=0))
    each_s = costs.seconds(replace(mix, answer_tokens=1, text_tokens=0))
    tokens = left_s / each_s
    return replace(mix, answer_tokens=tokens) if tokens >= LEAST_TOKENS else None


def doubled(budget: Budget) -> Sequence[tuple[str, Budget]]:
    """The budget with twice as much of one thing."""
    return [
        ("twice the answers", replace(budget, answer_tokens=2 * budget.answer_tokens)),
        ("twice the readings", replace(budget, epochs=2 * budget.epochs)),
    ]

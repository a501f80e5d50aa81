"""How many tokens a round writes after so much training: a law fitted to measured trainings. Pure.

    log(x / (1 - x)) = level + G log(D / D0) + depth log(layers) + ids log(ids / I0),   x = (tau - 1) / lookahead
    G = growth + deeper log(layers),   D = U r(E) + w T,   r(E) = 1 + R (1 - exp(-(E - 1) / R))

U distinct answer tokens are read E times, T distinct tokens of plain text once before them; r(E) is what E readings are
worth in first readings, at most 1 + R; w is what a token of text is worth in answer tokens. x is the share of proposals
that is kept, if those behind a rejected one count as rejected. There is a law for each lookahead. What no training
varied is not fitted, and the law answers no question that varies it.

That a deeper draft gains more from each token was found before it was written here: one layer 0.2 of log odds an e-fold
of answers, four 0.4 (docs/log.md, 2026-11-25).

Source: a power law in data is Hestness et al. 2017 (arXiv 1712.00409); the worth of readings, Muennighoff et al. 2023
(arXiv 2305.16264, eq. 5). That the odds of x follow one, and that depth and ids enter as powers, `left_out` tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import expit

TOKENS_UNIT, IDS_UNIT = 100_000, 4096  # D0 and I0: where the level is read off
LEAST_CELLS = 8  # for seven numbers; fewer would be joined by a line, not by a law
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Budget:
    """What a draft is made with.

    Attributes:
        answer_tokens: Distinct ones of the target's answers.
        epochs: Readings of them.
        text_tokens: Of plain text, read once before the answers.
        layers: Of the draft.
        ids: It can output.
    """

    answer_tokens: float
    epochs: float
    text_tokens: float
    layers: int
    ids: int


@dataclass(frozen=True)
class Law:
    """The numbers of the law above, by its names; `reuse` is R, `text` is w.

    Attributes:
        lookahead: It is of.
        level: Log odds of x for one layer with IDS_UNIT ids and TOKENS_UNIT answer tokens, read once.
        growth: Power of the tokens, with one layer.
        deeper: How much more of it an e-fold of layers has.
        depth: Power of the layers, with TOKENS_UNIT answer tokens.
        ids: Power of the ids.
        reuse: Further readings are worth so many first ones at most.
        text: Worth of a token of text.
    """

    lookahead: int
    level: float
    growth: float
    deeper: float
    depth: float
    ids: float
    reuse: float
    text: float

    def tokens(self, budget: Budget) -> float:
        """D: what all that is read is worth in answer tokens read once."""
        readings = 1 + self.reuse * (1 - np.exp(-(budget.epochs - 1) / self.reuse))
        return float(budget.answer_tokens * readings + self.text * budget.text_tokens)

    def tau(self, budget: Budget) -> float:
        deep = np.log(budget.layers)
        power = (
            self.level
            + (self.growth + self.deeper * deep) * np.log(max(self.tokens(budget), 1) / TOKENS_UNIT)
            + self.depth * deep
            + self.ids * np.log(budget.ids / IDS_UNIT)
        )
        return float(1 + self.lookahead * expit(power))


class Bounds(NamedTuple):
    """Where a number of the law is looked for."""

    start: float
    least: float
    most: float


UNVARIED = Law(lookahead=1, level=0.0, growth=0.0, deeper=0.0, depth=0.0, ids=0.0, reuse=1.0, text=0.0)  # if not fitted
BOUNDS = {
    "level": Bounds(-1.0, -8.0, 4.0),
    "growth": Bounds(0.2, 0.0, 1.0),
    "deeper": Bounds(0.1, -1.0, 1.0),
    "depth": Bounds(0.1, -1.0, 2.0),
    "ids": Bounds(0.0, -1.0, 1.0),
    "reuse": Bounds(3.0, 0.05, 50.0),
    "text": Bounds(0.1, 0.0, 2.0),
}
VARIED_BY = {
    "growth": "answer_tokens",
    "deeper": "layers",
    "depth": "layers",
    "ids": "ids",
    "reuse": "epochs",
    "text": "text_tokens",
}


def varied(budgets: Sequence[Budget]) -> set[str]:
    """The fields that differ among budgets."""
    return {field.name for field in fields(Budget) if len({getattr(budget, field.name) for budget in budgets}) > 1}


def fit(budgets: Sequence[Budget], taus: Sequence[float], lookahead: int) -> Law:
    """The law nearest to measured tokens per round at a lookahead, in the squares of their differences.

    Raises:
        ValueError: Of fewer than LEAST_CELLS trainings.
    """
    if len(budgets) < LEAST_CELLS:
        raise ValueError(f"a law needs {LEAST_CELLS} trainings at least, got {len(budgets)}")
    differing = varied(budgets)
    names = [name for name in BOUNDS if name == "level" or VARIED_BY[name] in differing]

    def law_of(values: Array) -> Law:
        return replace(UNVARIED, lookahead=lookahead, **dict(zip(names, map(float, values), strict=True)))

    def missed(values: Array) -> Array:
        law = law_of(values)
        return np.array([law.tau(budget) - tau for budget, tau in zip(budgets, taus, strict=True)])

    starts, least, most = zip(*(BOUNDS[name] for name in names), strict=True)
    return law_of(least_squares(missed, starts, bounds=(least, most)).x)


@dataclass(frozen=True)
class LeftOut:
    """How a law foretells trainings it was not fitted to.

    Attributes:
        predicted: Tau of each training, by the law of all others.
        missed: How far each is from what was measured.
        by_constant: How far the best constant of all others is.
    """

    predicted: tuple[float, ...]
    missed: tuple[float, ...]
    by_constant: tuple[float, ...]

    @property
    def worst(self) -> float:
        return max(self.missed)

    @property
    def share_of_constant(self) -> float:
        """Mean miss over that of the best constant: below 1 the law knows something."""
        return fmean(self.missed) / fmean(self.by_constant)


def left_out(budgets: Sequence[Budget], taus: Sequence[float], lookahead: int) -> LeftOut:
    """Each training foretold by the law of the others, and by their median, the constant with the least mean miss."""
    predicted, constants = [], []
    for index in range(len(budgets)):
        others = [*taus[:index], *taus[index + 1 :]]
        law = fit([*budgets[:index], *budgets[index + 1 :]], others, lookahead)
        predicted.append(law.tau(budgets[index]))
        constants.append(median(others))
    return LeftOut(
        tuple(predicted),
        tuple(abs(each - tau) for each, tau in zip(predicted, taus, strict=True)),
        tuple(abs(each - tau) for each, tau in zip(constants, taus, strict=True)),
    )

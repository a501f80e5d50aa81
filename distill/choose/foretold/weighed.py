"""What makes a draft pay here, as `choose --budget` finds it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distill.budget.costs import Costs
from distill.budget.mixes import Laws, Mix
from distill.budget.record import Trainings
from distill.choose.shapes.candidates import Candidate
from eval.acceptance.speedup import StepTimes
from eval.predictions.ranking import Prospect


@dataclass(frozen=True)
class Weighed:
    """A candidate, and what makes it pay.

    Attributes:
        candidate: The shape.
        prospect: What its step times allow.
        break_even: The cheapest mix with which it is as fast as the target alone; None if there is none.
        own: What the recipe's own answers and readings make of it; None where they are not known.
    """

    candidate: Candidate
    prospect: Prospect
    break_even: Mix | None
    own: Mix | None


@dataclass(frozen=True)
class Basis:
    """What all candidates are weighed by.

    Attributes:
        path: Of the file of trainings.
        record: The trainings.
        laws: Fitted to them.
        costs: Of their machine.
        steps: Of every candidate, measured here.
    """

    path: Path
    record: Trainings
    laws: Laws
    costs: Costs
    steps: Mapping[str, StepTimes]

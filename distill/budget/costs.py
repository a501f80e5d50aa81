"""Minutes of a budget on the machine where the trainings were measured. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from distill.budget.law import Budget
from distill.budget.record import Training, Trainings


@dataclass(frozen=True)
class Costs:
    """Seconds of what a budget is spent on; a step is a part that is always paid, one a layer, and one an id.

    Attributes:
        answers_per_s: Answer tokens that the target writes in a second.
        fixed_s: Of each answer token that is trained on, whatever the shape.
        layer_s: Of each, for every layer.
        id_s: Of each, for every id.
        text_share: Seconds of a token of text over those of an answer token, prompts counting as none.
    """

    answers_per_s: float
    fixed_s: float
    layer_s: float
    id_s: float
    text_share: float

    def step_s(self, layers: int, ids: int) -> float:
        """Of training on one answer token."""
        return self.fixed_s + self.layer_s * layers + self.id_s * ids

    def seconds(self, budget: Budget) -> float:
        """Answers written, and text and answers trained on."""
        read = budget.answer_tokens * budget.epochs + self.text_share * budget.text_tokens
        return budget.answer_tokens / self.answers_per_s + read * self.step_s(budget.layers, budget.ids)


def costs_of(record: Trainings) -> Costs:
    """Fitted to the seconds of all trainings, none of them below nothing."""
    on_answers = [training for training in record.trainings if training.answers_s > 0]
    weighed = np.array([row(training) for training in on_answers])
    fixed_s, layer_s, id_s = map(float, nnls(weighed, np.ones(len(on_answers)))[0])
    costs = Costs(record.answers_per_s, fixed_s, layer_s, id_s, text_share=0.0)
    return Costs(record.answers_per_s, fixed_s, layer_s, id_s, text_share(costs, record.trainings))


def row(training: Training) -> NDArray[np.float64]:
    """What its seconds are made of, divided by them: so that every training counts alike."""
    read = training.budget.answer_tokens * training.budget.epochs
    return np.array([read, read * training.budget.layers, read * training.budget.ids]) / training.answers_s


def text_share(costs: Costs, trainings: Sequence[Training]) -> float:
    """Seconds of a token of text over those of an answer token of the same shape; 0 where no text was read."""
    with_text = [training for training in trainings if training.budget.text_tokens > 0]
    expected = sum(
        training.budget.text_tokens * costs.step_s(training.budget.layers, training.budget.ids)
        for training in with_text
    )
    return sum(training.text_s for training in with_text) / expected if with_text else 0.0

"""Trainings as a law has them, for tests of what follows from them."""

from dataclasses import replace
from itertools import product
from pathlib import Path

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from distill.budget.law import Budget, Law
from distill.budget.record import SCHEMA, Training, Trainings

LAW = Law(lookahead=1, level=-0.6, growth=0.25, deeper=0.0, depth=0.05, ids=0.0, reuse=3.0, text=0.3)
STEP_S = 1e-4


def trainings_of(target: Path) -> Trainings:
    """Sixteen of them, of depths 1 and 2 with 259 and 262 ids."""
    shapes = product([(2e4, 1), (2e5, 3)], [1, 2], [259, 262], [0, 1e5])
    budgets = [Budget(tokens, epochs, text, layers, ids) for (tokens, epochs), layers, ids, text in shapes]
    return Trainings(
        schema=SCHEMA,
        target=fingerprint_checkpoint(target),
        recipe="tiny",
        inputs="i",
        prompts=8,
        processor="a processor",
        threads=2,
        torch="2",
        precision="fp32",
        answers_per_s=200,
        tokens_per_answer=1000,
        commit=None,
        created="now",
        trainings=tuple(map(training, budgets)),
    )


def training(budget: Budget) -> Training:
    read = budget.answer_tokens * budget.epochs
    taus = (LAW.tau(budget), replace(LAW, lookahead=2, level=LAW.level - 0.3).tau(budget))
    return Training(
        asked=budget,
        budget=budget,
        answers_s=read * STEP_S * budget.layers,
        text_s=budget.text_tokens * STEP_S * budget.layers,
        taus=taus,
        greedy_match=0.2,
    )

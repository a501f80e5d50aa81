"""Prompts with drafts whose acceptance is known: a large population, from which a scoring draws a few.

Synthetic: a prompt's own alpha is logistic-normal, tokens are kept independently with it, and half of the texts reach
the limit of 128 tokens while the others end anywhere from 20 on. Prompts differ as widely as in the scorecards of
docs/depths (alpha 0.202 [0.173, 0.236] and 0.473 [0.438, 0.514] of 48 prompts: a spread of 0.10 and 0.12 beside what
96 tokens leave to chance). Two drafts share most of what makes a prompt hard.

Shape suffixes used in this file:
    P = prompts, D = drafts, T = tokens of a text
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

K = 4
SHARED_SPREAD, OWN_SPREAD = 0.5, 0.2  # of the logit of a prompt's alpha: of all drafts, and of each
LEAST_TOKENS, MOST_TOKENS = 20, 128


@dataclass(frozen=True)
class Population:
    """Sums of every prompt, for each draft."""

    tokens_P: Array
    kept_DP: Array
    rounds_DP: Array
    full_DP: Array

    def sample(self, num_prompts: int, rng: np.random.Generator) -> "Population":
        """So many prompts, drawn independently."""
        drawn = rng.integers(len(self.tokens_P), size=num_prompts)
        return Population(
            self.tokens_P[drawn], self.kept_DP[:, drawn], self.rounds_DP[:, drawn], self.full_DP[:, drawn]
        )

    def alpha_columns(self, draft: int = 0) -> tuple[list[float], list[float]]:
        """Of the mean over tokens."""
        return self.kept_DP[draft].tolist(), self.tokens_P.tolist()

    def tau_columns(self, draft: int = 0) -> tuple[list[float], list[float]]:
        """Of tokens a step."""
        return self.tokens_P.tolist(), self.rounds_DP[draft].tolist()

    def full_columns(self, draft: int = 0) -> tuple[list[float], list[float]]:
        """Of steps that kept everything."""
        return self.full_DP[draft].tolist(), self.rounds_DP[draft].tolist()


def population(
    logits: tuple[float, ...], *, seed: int, num_prompts: int = 10_000, own_spread: float = OWN_SPREAD
) -> Population:
    """A population of prompts, for drafts whose logit of alpha is so much on the mean.

    Drafts of one logit are exchangeable, so no difference between them is true.
    """
    rng = np.random.default_rng(seed)
    tokens_P = np.where(
        rng.random(num_prompts) < 0.5, MOST_TOKENS, rng.integers(LEAST_TOKENS, MOST_TOKENS + 1, num_prompts)
    )
    shared_P = rng.normal(0, SHARED_SPREAD, num_prompts)
    counts = np.array(
        [texts(tokens_P, logit + shared_P + rng.normal(0, own_spread, num_prompts), rng) for logit in logits]
    )
    kept_DP, rounds_DP, full_DP = counts.transpose(1, 0, 2)
    return Population(tokens_P.astype(np.float64), kept_DP, rounds_DP, full_DP)


def texts(tokens_P: NDArray[np.int64], logits_P: Array, rng: np.random.Generator) -> Array:
    """Tokens kept if proposed, steps, and steps that kept K tokens, of one text of every prompt."""
    kept_PT = rng.random((len(tokens_P), MOST_TOKENS)) < (1 / (1 + np.exp(-logits_P)))[:, None]
    inside_PT = np.arange(MOST_TOKENS) < tokens_P[:, None]
    steps_P, full_P = np.zeros(len(tokens_P)), np.zeros(len(tokens_P))
    run_P = np.zeros(len(tokens_P), dtype=np.int64)  # tokens kept so far in the step
    for position in range(MOST_TOKENS):
        is_last = position == tokens_P - 1
        ends = inside_PT[:, position] & (~kept_PT[:, position] | (run_P == K) | is_last)
        steps_P += ends
        full_P += ends & (run_P == K)
        run_P = np.where(ends, 0, run_P + inside_PT[:, position])
    return np.array([(kept_PT & inside_PT).sum(axis=1), steps_P, full_P])

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
LOGIT = -0.6  # an alpha of 0.36 or so
SHARED_SPREAD, OWN_SPREAD = 0.5, 0.2  # of the logit of a prompt's alpha: of all drafts, and of each
LEAST_TOKENS, MOST_TOKENS = 20, 128
LONGER = 10  # times as long as the others


@dataclass(frozen=True)
class Population:
    """Sums of every prompt, for each draft; one prompt in `every` is long, if that is more than one."""

    tokens_P: Array
    kept_DP: Array
    rounds_DP: Array
    full_DP: Array
    every: int = 1

    def sample(self, num_prompts: int, rng: np.random.Generator) -> "Population":
        """So many prompts, drawn independently, long ones in their share."""
        drawn = self.every * rng.integers(len(self.tokens_P) // self.every, size=num_prompts)
        if self.every > 1:
            drawn += np.where(np.arange(num_prompts) % self.every, rng.integers(1, self.every, num_prompts), 0)
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


@dataclass(frozen=True)
class Lengths:
    """How long texts are.

    Attributes:
        every: One prompt in so many is ten times as long as the others; 1 for none.
        logit: Of alpha, in the middle.
        easier: How much higher that of long texts is.
        where: In the words of the table.
    """

    every: int = 1
    logit: float = LOGIT
    easier: float = 0.0
    where: str = ""

    def size(self, num_prompts: int) -> str:
        """The words of the table for so many prompts."""
        long = f", {num_prompts // self.every} ten times as long" if self.every > 1 else ""
        return f"{num_prompts} prompts{long}{self.where}"

    def population(self, *betters: float, seed: int) -> Population:
        """Prompts for drafts whose logit is so much higher each."""
        logits = tuple(self.logit + better for better in betters)
        num_prompts = 10_000 if self.every == 1 else 3000
        return population(logits, seed=seed, num_prompts=num_prompts, every=self.every, easier=self.easier)


EQUAL = Lengths()
UNEQUAL = (
    Lengths(6),
    Lengths(6, logit=-3.0, where=", alpha near 0.05"),
    Lengths(6, logit=3.0, where=", alpha near 0.95"),
    Lengths(6, logit=-3.0, easier=1.0, where=", long ones easier"),
)


def population(
    logits: tuple[float, ...],
    *,
    seed: int,
    num_prompts: int = 10_000,
    own_spread: float = OWN_SPREAD,
    every: int = 1,
    easier: float = 0.0,
) -> Population:
    """A population of prompts, for drafts whose logit of alpha is so much on the mean.

    Drafts of one logit are exchangeable, so no difference between them is true.

    Args:
        every: One prompt in so many is ten times as long as the others; 1 for none.
        easier: How much higher the logit of these is.
    """
    rng = np.random.default_rng(seed)
    tokens_P = np.where(
        rng.random(num_prompts) < 0.5, MOST_TOKENS, rng.integers(LEAST_TOKENS, MOST_TOKENS + 1, num_prompts)
    )
    shared_P = rng.normal(0, SHARED_SPREAD, num_prompts)
    if every > 1:
        tokens_P[::every] *= LONGER
        shared_P[::every] += easier
    counts = np.array(
        [texts(tokens_P, logit + shared_P + rng.normal(0, own_spread, num_prompts), rng) for logit in logits]
    )
    kept_DP, rounds_DP, full_DP = counts.transpose(1, 0, 2)
    return Population(tokens_P.astype(np.float64), kept_DP, rounds_DP, full_DP, every)


def texts(tokens_P: NDArray[np.int64], logits_P: Array, rng: np.random.Generator) -> Array:
    """Tokens kept if proposed, steps, and steps that kept K tokens, of one text of every prompt."""
    kept_PT = rng.random((len(tokens_P), tokens_P.max())) < (1 / (1 + np.exp(-logits_P)))[:, None]
    inside_PT = np.arange(tokens_P.max()) < tokens_P[:, None]
    steps_P, full_P = np.zeros(len(tokens_P)), np.zeros(len(tokens_P))
    run_P = np.zeros(len(tokens_P), dtype=np.int64)  # tokens kept so far in the step
    for position in range(tokens_P.max()):
        is_last = position == tokens_P - 1
        ends = inside_PT[:, position] & (~kept_PT[:, position] | (run_P == K) | is_last)
        steps_P += ends
        full_P += ends & (run_P == K)
        run_P = np.where(ends, 0, run_P + inside_PT[:, position])
    return np.array([(kept_PT & inside_PT).sum(axis=1), steps_P, full_P])

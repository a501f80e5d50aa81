"""Bins of answer tokens: by the prompt's task and category, by position in the answer, by how sure the target is.

Edges are fixed, so that bins of two scorecards are the same bins. Pure.

Shape suffixes used in this file:
    T = tokens of one answer
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from eval.acceptance.replay import Replay

POSITION_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # tokens of the answer before this one
ENTROPY_EDGES_NATS = (0.1, 0.5, 1.0, 2.0, 4.0)
NO_TASK, NO_CATEGORY = "without a task", "without a category"


@dataclass(frozen=True)
class ReplayedAnswer:
    """One answer as a draft was replayed along it.

    Attributes:
        prompt: Which prompt it answers; a conversation of several turns is one prompt.
        category: The prompt's, if it has one.
        replay: What the draft would do.
        task: The prompt's, if it has one.
    """

    prompt: int
    category: str | None
    replay: Replay
    task: str | None = None


@dataclass(frozen=True)
class Binning:
    """One way to part tokens.

    Attributes:
        by: What they are parted by.
        labels: Of the bins, in their order.
        bins: The bin_T of an answer's tokens, each an index into the labels.
    """

    by: str
    labels: Sequence[str]
    bins: Callable[[ReplayedAnswer], NDArray[np.int64]]


def binnings(answers: Sequence[ReplayedAnswer]) -> list[Binning]:
    """Every way in which tokens of these answers are parted; a way may turn out to fill one bin alone."""
    return [
        labelled("task", lambda answer: answer.task, answers, without=NO_TASK),
        labelled("category", lambda answer: answer.category, answers, without=NO_CATEGORY),
        Binning(
            "output_position", token_labels(POSITION_EDGES), lambda answer: position_bins(answer.replay.num_tokens)
        ),
        Binning(
            "entropy",
            nats_labels(ENTROPY_EDGES_NATS),
            lambda answer: np.digitize(answer.replay.target_entropy, ENTROPY_EDGES_NATS),
        ),
    ]


def labelled(
    by: str, label: Callable[[ReplayedAnswer], str | None], answers: Sequence[ReplayedAnswer], *, without: str
) -> Binning:
    """Answers parted by a label of their prompt, in alphabetical order; those that have none come last."""
    labels = sorted({name for name in map(label, answers) if name is not None})
    indices = {None: len(labels), **{name: index for index, name in enumerate(labels)}}
    return Binning(by, [*labels, without], lambda answer: np.full(answer.replay.num_tokens, indices[label(answer)]))


def position_bins(num_tokens: int) -> NDArray[np.int64]:
    """bin_T of the tokens of an answer; the first token has position 0."""
    return np.digitize(np.arange(num_tokens), POSITION_EDGES)


def token_labels(edges: Sequence[int]) -> list[str]:
    """Bins of whole numbers: 0-15, 16-31, ... and from the last edge on."""
    inner = [f"{low}-{high - 1}" for low, high in zip((0, *edges), edges, strict=False)]
    return [*inner, f"{edges[-1]} and more"]


def nats_labels(edges: Sequence[float]) -> list[str]:
    """Bins of numbers: below the first edge, between two, and from the last on; an edge belongs to the bin above it."""
    inner = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    return [f"below {edges[0]:g}", *inner, f"{edges[-1]:g} and more"]

"""What a layer costs and what width costs, from step times of shapes of equal size: t = a + b layers + w width.

That depth costs and width hardly does is what wide and shallow drafts stand on: "Decoding Speculative Decoding"
(arXiv 2402.01528), section 4. Least squares over the median times of all shapes of a cell. Intervals are made by
bootstrap over repetitions, in each of which all shapes were timed in turn: they hold the noise of the machine, not the
error of taking a straight line, of which the largest residual tells. Pure; no torch.

Shape suffixes used in this file:
    R = repetitions, N = resamples, S = shapes, C = coefficients (constant, layers, hundreds of channels)
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from architectures.shapes.equal_shapes import EqualShape
from architectures.shapes.shape import Shape
from architectures.shapes.sizes import WIDTHS
from eval.acceptance.estimates import Resampling
from eval.acceptance.intervals import percentile_interval

Record = dict[str, Any]
Array = NDArray[np.float64]

COEFFICIENTS = ("constant_ms", "layer_ms", "hundred_channels_ms")


def with_depth_and_width(record: Record, shapes: Sequence[EqualShape], target: Shape, resampling: Resampling) -> Record:
    """The record of a grid whose drafts are shapes of equal size, with what it says of depth and width.

    Args:
        record: Each cell has steps of every shape, under its name.
        shapes: Of one or several sizes, each from shallow to deep.
        target: Its shape; a shape larger than it in something cannot be cut out of it.
        resampling: How intervals are made.
    """
    listed = [
        {"name": one.name, "size": one.size, **asdict(one.shape), "larger": larger(one, target)} for one in shapes
    ]
    cells = [cell | {"depth_and_width": depth_and_width(cell, shapes, resampling)} for cell in record["cells"]]
    return record | {"shapes": listed, "cells": cells}


def larger(one: EqualShape, target: Shape) -> list[str]:
    """What a shape has more of than the target."""
    return [name for name in WIDTHS if getattr(one.shape, name) > getattr(target, name)]


def depth_and_width(cell: Record, shapes: Sequence[EqualShape], resampling: Resampling) -> Record:
    """What the one-token steps of some shapes say of depth and of width.

    Args:
        cell: Of a grid whose drafts are these shapes, each under its name.
        shapes: Of one or several sizes, each from shallow to deep.
        resampling: How intervals are made.

    Returns:
        `fit`: COEFFICIENTS with intervals, and `largest_residual`, a share of the time it stands for;
        `sizes`: for each size its shallowest, deepest and fastest shape, and how many times as long a step of the
        deepest takes as one of the shallowest.
    """
    times_RS = np.array([times_ms(cell, shape.name) for shape in shapes]).T
    rows_NR = np.random.default_rng(resampling.seed).integers(
        len(times_RS), size=(resampling.num_resamples, len(times_RS))
    )
    medians_S, medians_NS = np.median(times_RS, axis=0), np.median(times_RS[rows_NR], axis=1)
    return {
        "fit": fit_record(shapes, medians_S, medians_NS, resampling.confidence),
        "sizes": [
            size_record(shapes, places, medians_S, medians_NS, resampling.confidence)
            for places in places_by_size(shapes)
        ],
    }


def times_ms(cell: Record, name: str) -> list[float]:
    """Milliseconds of one token by a draft, one for each repetition in turn with the others."""
    [step] = [step for step in cell["together"]["steps"] if (step["model"], step["tokens"]) == (name, 1)]
    return step["each_ms"]


def fit_record(shapes: Sequence[EqualShape], medians_S: Array, medians_NS: Array, confidence: float) -> Record:
    """The straight line through the medians of all shapes."""
    design_SC = np.array([[1, one.shape.layers, one.shape.hidden / 100] for one in shapes])
    solve_CS = np.linalg.pinv(design_SC)
    found_C, found_NC = solve_CS @ medians_S, medians_NS @ solve_CS.T
    estimates = [estimate(value, values_N, confidence) for value, values_N in zip(found_C, found_NC.T, strict=True)]
    residual_S = np.abs(design_SC @ found_C / medians_S - 1)
    return {**dict(zip(COEFFICIENTS, estimates, strict=True)), "largest_residual": float(residual_S.max())}


def size_record(
    shapes: Sequence[EqualShape], places: Sequence[int], medians_S: Array, medians_NS: Array, confidence: float
) -> Record:
    """The two ends of one size."""
    first, last = places[0], places[-1]
    fastest = min(places, key=lambda place: medians_S[place])
    return {
        "size": shapes[first].size,
        "shallowest": shapes[first].name,
        "deepest": shapes[last].name,
        "fastest": shapes[fastest].name,
        "deepest_over_shallowest": estimate(
            medians_S[last] / medians_S[first], medians_NS[:, last] / medians_NS[:, first], confidence
        ),
    }


def places_by_size(shapes: Sequence[EqualShape]) -> list[list[int]]:
    """Where the shapes of each size stand, in their order."""
    sizes = list(dict.fromkeys(one.size for one in shapes))
    return [[place for place, one in enumerate(shapes) if one.size == size] for size in sizes]


def estimate(value: float, values_N: Array, confidence: float) -> Record:
    """A value with its percentile interval."""
    return {"value": float(value), "interval": list(percentile_interval(values_N, confidence))}

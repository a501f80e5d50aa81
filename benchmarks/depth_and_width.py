"""What a layer costs and what width costs, from step times of shapes of equal size: t = a + b layers + w width.

That depth costs and width hardly does is what wide and shallow drafts stand on: "Decoding Speculative Decoding"
(arXiv 2402.01528), section 4. Least squares over the median times of all shapes of a cell. Intervals are made by
bootstrap over repetitions, in each of which all shapes were timed in turn: they hold the noise of the machine, not the
error of taking a straight line, of which the largest residual tells. Pure; no torch.

Shape suffixes used in this file:
    R = repetitions, N = resamples, S = shapes, C = coefficients (constant, layers, hundreds of channels)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.equal_shapes import EqualShape
from eval.intervals import Estimate, Resampling, percentile_interval

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DepthFit:
    """The straight line through the medians of all shapes; the residual is a share of the time it stands for."""

    constant_ms: Estimate
    layer_ms: Estimate
    hundred_channels_ms: Estimate
    largest_residual: float


@dataclass(frozen=True, kw_only=True)
class SizeEnds:
    """The shallowest, deepest and fastest shape of one size."""

    size: int
    shallowest: str
    deepest: str
    fastest: str
    deepest_over_shallowest: Estimate


@dataclass(frozen=True, kw_only=True)
class DepthAndWidth:
    """What one-token steps of shapes of equal size say of depth and of width."""

    fit: DepthFit
    sizes: tuple[SizeEnds, ...]


def depth_and_width(shapes: Sequence[EqualShape], times_RS: Array, resampling: Resampling) -> DepthAndWidth:
    """What the one-token steps of some shapes say of depth and of width.

    Args:
        shapes: Of one or several sizes, each from shallow to deep.
        times_RS: Milliseconds of one token by each of them, in every repetition.
        resampling: How intervals are made.
    """
    rows_NR = np.random.default_rng(resampling.seed).integers(
        len(times_RS), size=(resampling.num_resamples, len(times_RS))
    )
    medians_S, medians_NS = np.median(times_RS, axis=0), np.median(times_RS[rows_NR], axis=1)
    return DepthAndWidth(
        fit=fitted(shapes, medians_S, medians_NS, resampling.confidence),
        sizes=tuple(
            ends_of_size(shapes, indices, medians_S, medians_NS, resampling.confidence)
            for indices in indices_by_size(shapes)
        ),
    )


def fitted(shapes: Sequence[EqualShape], medians_S: Array, medians_NS: Array, confidence: float) -> DepthFit:
    """The straight line through the medians of all shapes."""
    design_SC = np.array([[1, shape.shape.layers, shape.shape.hidden / 100] for shape in shapes])
    solve_CS = np.linalg.pinv(design_SC)
    coefficients_C, coefficients_NC = solve_CS @ medians_S, medians_NS @ solve_CS.T
    estimates = [
        resampled(float(value), values_N, confidence)
        for value, values_N in zip(coefficients_C, coefficients_NC.T, strict=True)
    ]
    residual_S = np.abs(design_SC @ coefficients_C / medians_S - 1)
    return DepthFit(
        constant_ms=estimates[0],
        layer_ms=estimates[1],
        hundred_channels_ms=estimates[2],
        largest_residual=float(residual_S.max()),
    )


def resampled(value: float, values_N: Array, confidence: float) -> Estimate:
    """Return a value with the percentile interval of its resamples, widened to include the value itself."""
    low, high = percentile_interval(values_N, confidence)
    return Estimate(value, (min(low, value), max(high, value)))


def ends_of_size(
    shapes: Sequence[EqualShape], indices: Sequence[int], medians_S: Array, medians_NS: Array, confidence: float
) -> SizeEnds:
    first, last = indices[0], indices[-1]
    fastest = min(indices, key=lambda index: medians_S[index])
    ratio, ratio_N = medians_S[last] / medians_S[first], medians_NS[:, last] / medians_NS[:, first]
    return SizeEnds(
        size=shapes[first].size,
        shallowest=shapes[first].name,
        deepest=shapes[last].name,
        fastest=shapes[fastest].name,
        deepest_over_shallowest=resampled(float(ratio), ratio_N, confidence),
    )


def indices_by_size(shapes: Sequence[EqualShape]) -> list[list[int]]:
    """Where the shapes of each size stand, in their order."""
    sizes = list(dict.fromkeys(shape.size for shape in shapes))
    return [[index for index, shape in enumerate(shapes) if shape.size == size] for size in sizes]

"""Acceptance over a stream: means of windows, and of the end of what each source asks. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from eval.acceptance.estimates import Columns, Estimate, Resampling, paired_ratio_difference, pooled_ratio
from eval.records.request import RequestRecord
from eval.shift.reading import Arm

Records = Sequence[RequestRecord]
Measure = Callable[[Records], Columns]


def alpha_columns(records: Records) -> Columns:
    """Alpha of each request times its tokens, and these."""
    return [record.alpha * record.tokens for record in records], [float(record.tokens) for record in records]


def tau_columns(records: Records) -> Columns:
    """Tokens and rounds of each request."""
    return [float(record.tokens) for record in records], [float(record.rounds) for record in records]


@dataclass(frozen=True)
class Point:
    """A mean over a window.

    Attributes:
        request: The middle of the window, by the numbers of its requests.
        mean: Pooled over its tokens or rounds.
    """

    request: float
    mean: Estimate


def curve(records: Records, measure: Measure, window: int, resampling: Resampling) -> list[Point]:
    """Means of windows of so many requests, each half a window after the one before; the last ends with the stream."""
    last = max(0, len(records) - window)
    starts = sorted({*range(0, last, max(1, window // 2)), last})
    windows = (records[start : start + window] for start in starts)
    return [
        Point((part[0].request + part[-1].request) / 2, pooled_ratio(*measure(part), resampling)) for part in windows
    ]


def stretches(records: Records) -> list[list[RequestRecord]]:
    """Requests that follow each other and are of one source."""
    return [list(part) for _, part in groupby(records, key=lambda record: record.source)]


def by_source(records: Records) -> dict[str, list[RequestRecord]]:
    """The requests of each source, in the order in which sources are met."""
    sources: dict[str, list[RequestRecord]] = {}
    for record in records:
        sources.setdefault(record.source, []).append(record)
    return sources


@dataclass(frozen=True)
class Ending:
    """How an arm does at the end of what a source asks.

    Attributes:
        source: Whose requests.
        arm: The name of the arm.
        requests: How many are counted.
        alpha: Over their tokens.
        tau: Over their rounds.
        alpha_gain: alpha less that of the first arm on the same requests; None of the first.
        tau_gain: The same of tau.
    """

    source: str
    arm: str
    requests: int
    alpha: Estimate
    tau: Estimate
    alpha_gain: Estimate | None
    tau_gain: Estimate | None


def endings(arms: Sequence[Arm], last_share: float, resampling: Resampling) -> list[Ending]:
    """The last part of each source's requests in every arm.

    Args:
        arms: Over the same requests.
        last_share: Of each source's requests.
        resampling: How intervals are made.
    """
    of_arms = [by_source(arm.records) for arm in arms]
    return [
        ending(arm.name, last_part(own[source], last_share), None if own is of_arms[0] else first, resampling)
        for source, requests in of_arms[0].items()
        for first in [last_part(requests, last_share)]
        for arm, own in zip(arms, of_arms, strict=True)
    ]


def last_part(records: Records, share: float) -> Records:
    """The last share of some requests, at least one."""
    return records[-max(1, round(share * len(records))) :]


def ending(arm: str, records: Records, first: Records | None, resampling: Resampling) -> Ending:
    """Means over some requests, and their differences to those of another arm."""
    means = [pooled_ratio(*measure(records), resampling) for measure in (alpha_columns, tau_columns)]
    gains = [
        None if first is None else paired_ratio_difference(measure(records), measure(first), resampling)
        for measure in (alpha_columns, tau_columns)
    ]
    return Ending(records[0].source, arm, len(records), means[0], means[1], gains[0], gains[1])

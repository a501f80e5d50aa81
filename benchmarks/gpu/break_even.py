"""Stage c: from which acceptance on each shape pays, by the step times of stage b. Pure arithmetic."""

import json
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.gpu.stage import Row, Setting, SkippedError
from benchmarks.gpu.step_sizes import SIZES
from eval.acceptance.speedup import StepTimes, break_even_alpha

STEPS = "steps.json"  # in the scratch of a machine: the rows of benchmarks.gpu.steps
Conditions = tuple[str, int, int]  # how steps were run, batch, context
Medians = Mapping[int, float]  # by tokens


def rows(setting: Setting) -> Iterator[Row]:
    """Every shape, where it and the target were timed."""
    file = setting.work / STEPS
    if not file.is_file():
        raise SkippedError("there are no step times: the stage steps has not been run")
    yield from break_even_rows(json.loads(file.read_text(encoding="utf-8")), SIZES[setting.size].target)


def break_even_rows(steps: Sequence[Row], target: str) -> Iterator[Row]:
    """The least alpha at which drafting costs no time, if proposals are kept independently.

    Args:
        steps: Rows of benchmarks.gpu.steps; those that were left out, and what is told beside the steps, do not count.
        target: The shape that verifies.

    Yields:
        A row for each shape, place and lookahead whose steps are all there; alpha is None where not even 1 pays.
    """
    for (shape, conditions), own in medians_of(steps).items():
        verified = medians_of(steps).get((target, conditions), {})
        if shape == target or not {1, 2} <= own.keys() or 1 not in verified:
            continue
        how, batch, context = conditions
        for tokens in sorted(verified):
            if tokens > 1:
                lookahead = tokens - 1
                times = StepTimes(verified[1], own[1], own[2], {lookahead: verified[tokens]})
                yield {
                    "target": target,
                    "shape": shape,
                    "how": how,
                    "batch": batch,
                    "context": context,
                    "lookahead": lookahead,
                    "alpha": break_even_alpha(lookahead, times),
                }


def medians_of(steps: Sequence[Row]) -> dict[tuple[str, Conditions], dict[int, float]]:
    """Milliseconds by shape and conditions, then by tokens."""
    medians: dict[tuple[str, Conditions], dict[int, float]] = {}
    for row in steps:
        if "median_ms" in row:
            conditions = (row["how"], row["batch"], row["context"])
            medians.setdefault((row["shape"], conditions), {})[row["tokens"]] = row["median_ms"]
    return medians

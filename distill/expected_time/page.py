"""The block of `widedraft check` that tells hours, or how to come to know them. No torch."""

from collections.abc import Sequence

from distill.expected_time.devices import Device, slug_of
from distill.expected_time.stage_time import PlannedRun, StageTime, duration
from distill.expected_time.stages import stage_times

Row = tuple[str, str]
HOW_TO_MEASURE = "`python -m benchmarks.gpu --size laptop` in a checkout measures it"
NOT_COUNTED = (
    "loading, cutting the draft (minutes where scores are computed), writing files, padding; the one run compared "
    "so far took 1.46 times what is told (docs/recipes.md)"
)


def time_title(device: Device) -> str:
    """Which device, and whether its figures were measured; the file with its date, or what is assumed."""
    if device.figures is not None:
        return f"time on {device.name} (measured {device.figures.measured}, {device.figures.file})"
    if device.published is not None:
        return f"time on {device.name} (assumed: nobody has measured it, speeds follow from what its maker publishes)"
    return f"time on {device.name} (unknown: it has not been measured)"


def time_rows(run: PlannedRun, device: Device) -> list[Row]:
    """Each stage, and all of them where each is known."""
    if device.figures is None and device.published is None:
        example = slug_of("NVIDIA H100 80GB HBM3")
        return [("not estimated", f"{HOW_TO_MEASURE}; --device tells of another, such as {example}")]
    times = stage_times(run, device)
    rows = [(time.name, f"{spent(time)}: {time.words}") for time in times]
    return [*rows, ("together", spent_together(times)), ("texts", run.lengths.words), ("not counted", NOT_COUNTED)]


def spent(time: StageTime) -> str:
    """Of one device and, where several can share it, of these."""
    if time.seconds is None:
        return "unknown"
    shared_s = time.on(time.processes)
    if time.processes == 1 or shared_s is None:
        return duration(time.seconds)
    return f"{duration(time.seconds)} (on {time.processes} devices {duration(shared_s)}, divided, unmeasured)"


def spent_together(times: Sequence[StageTime]) -> str:
    """The sum of those that are known, and what is missing in it."""
    total_s = sum(time.seconds or 0.0 for time in times)
    missing = [time.name for time in times if time.seconds is None]
    if len(missing) == len(times):
        return "unknown"
    if missing:
        return f"{duration(total_s)} without {' and '.join(missing)}"
    most = max(time.processes for time in times)
    shared_s = sum(time.on(time.processes) or 0.0 for time in times)
    shared = f" (on {most} devices {duration(shared_s)})" if most > 1 else ""
    return f"{duration(total_s)}{shared}"

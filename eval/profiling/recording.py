"""One pass recorded by torch's profiler, after one that warms the profiler up, and the files made of it.

torch's own memory timeline is deprecated since 2.11 in favour of one for GPUs alone, and asks for stacks, so that every
call of a Python function is recorded too. So memory over time is drawn from the trace's allocations, on any device.
"""

import gzip
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from architectures.files.atomic import partial_path, write_bytes, write_json, write_text
from architectures.pages.blocks import Figure
from eval.models.clock import clock_s
from eval.profiling.figures import (
    Memory,
    Span,
    gpu_busy_share,
    memory_over_time,
    named_spans,
    own_ms,
    recorded_span,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OPERATIONS = 30  # in the table
MIB = 2**20


@dataclass(frozen=True)
class Profile:
    """What was recorded, in figures and files.

    Attributes:
        files: The trace, memory as JSON and as a plot, and the table of operations.
        ms: Of everything, by the host's clock; recording makes it longer.
        parts_ms: Of each part that has a name, without parts within it.
        top_operation: That took the most time itself: of the GPU where there is one.
        gpu_busy_share: Share of the time in which the GPU did anything; None on a processor.
        peak_bytes: Of each device; see eval.profiling.figures.Memory.
    """

    files: tuple[Path, ...]
    ms: float
    parts_ms: dict[str, float]
    top_operation: str
    gpu_busy_share: float | None
    peak_bytes: dict[str, int]

    def describe(self) -> str:
        parts = ", ".join(f"{name} {ms:.1f}" for name, ms in self.parts_ms.items())
        busy = "" if self.gpu_busy_share is None else f", the GPU busy for {self.gpu_busy_share:.0%} of them"
        return f"{self.ms:.1f} ms while recorded ({parts}){busy}; most of it in {self.top_operation}"


class Recording:
    """A profiler over two passes of the same work: call start, do it, step, do it again, step.

    Args:
        device: That does the work.
    """

    def __init__(self, device: torch.device):
        self.device = device
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self.profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
            record_shapes=True,
            profile_memory=True,
            acc_events=True,  # there is one cycle; without, torch 2.11 warns of others' loss
        )

    def start(self) -> None:
        clock_s(self.device)
        self.profiler.start()

    def step(self) -> None:
        """End a pass, once the device is done with it, and begin the next if there is one."""
        clock_s(self.device)
        self.profiler.step()

    def stop(self) -> None:
        """End recording, also in the middle of a pass."""
        self.profiler.stop()

    def written(self, folder: Path, name: str, parts: Collection[str]) -> Profile:
        """Write the files of the second pass; an older profile of that name is replaced.

        Args:
            folder: That takes them.
            name: Of what was recorded.
            parts: Names that record_function gave to parts of it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        trace = folder / f"{name}.pt.trace.json.gz"  # the name by which TensorBoard's plugin knows one
        events = self.write_trace(trace)
        within, spans = recorded_span(events), named_spans(events, parts)
        memory = memory_over_time(events, within)
        on_gpu = self.device.type == "cuda"
        summary = Profile(
            (trace, *(folder / f"{name}{ending}" for ending in (".memory.json", ".memory.png", ".txt"))),
            (within.end - within.start) / 1000,
            own_ms(spans),
            self.top_operation(),
            gpu_busy_share(events, within) if on_gpu else None,
            {each.device: max(each.allocated_bytes) for each in memory},
        )
        _, numbers, plot, table = summary.files
        write_json(memory_record(memory, spans, within), numbers)
        write_bytes(memory_plot(memory, spans, within), plot)
        write_text(f"{name}: {summary.describe()}\n\n{self.table()}", table)
        return summary

    def write_trace(self, path: Path) -> list[dict[str, Any]]:
        """Write the trace, whole or not at all; returns its events. torch writes each trace once."""
        partial = partial_path(path).with_suffix(".partial.gz")  # torch compresses what is called so
        try:
            self.profiler.export_chrome_trace(str(partial))
            with gzip.open(partial, "rt", encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return [event for event in events if "cat" in event]

    @property
    def by(self) -> str:
        """What operations are sorted by."""
        return "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"

    def table(self) -> str:
        """The operations that took the most time themselves, as torch prints them."""
        return self.profiler.key_averages().table(sort_by=self.by, row_limit=OPERATIONS, max_name_column_width=70)

    def top_operation(self) -> str:
        """The first of them that is no name of a part."""
        operations = [each for each in self.profiler.key_averages() if not each.is_user_annotation]
        return max(operations, key=lambda each: getattr(each, self.by)).key


def memory_record(memory: Iterable[Memory], spans: Iterable[Span], within: Span) -> dict[str, Any]:
    """Memory over time for a file."""
    return {
        "devices": {each.device: {**vars(each), "peak_bytes": max(each.allocated_bytes)} for each in memory},
        "parts": [
            {"name": span.name, "start_ms": since(span.start, within), "end_ms": since(span.end, within)}
            for span in spans
        ],
    }


def since(at: float, within: Span) -> float:
    """Milliseconds since what was recorded began."""
    return (at - within.start) / 1000


def memory_plot(memory: list[Memory], spans: list[Span], within: Span) -> bytes:
    """Memory over time as a PNG file, parts shaded."""
    from eval.pages.drawing import render

    alt = "Memory over time"
    return render(Figure("memory", alt, alt, lambda axes: draw(axes, memory, spans, within))).png


def draw(axes: "Axes", memory: list[Memory], spans: list[Span], within: Span) -> None:
    """A line for each device, and a strip for each part, those within others over them."""
    from matplotlib.colors import to_rgb

    from eval.pages.drawing import COLOURS

    names = list(dict.fromkeys(span.name for span in spans))
    for span in spans:
        first = next(other for other in spans if other.name == span.name) is span
        colour = COLOURS[(names.index(span.name) + 1) % len(COLOURS)]
        axes.axvspan(
            since(span.start, within),
            since(span.end, within),
            color=[0.75 + 0.25 * each for each in to_rgb(colour)],  # pale, and not seen through
            zorder=0,
            linewidth=0,
            label=span.name if first else None,
        )
    for index, each in enumerate(memory):
        allocated = [size / MIB for size in each.allocated_bytes]
        axes.step(
            each.ms, allocated, where="post", color=COLOURS[-index % len(COLOURS)], label=f"allocated, {each.device}"
        )
    axes.set(xlabel="milliseconds", ylabel="MiB", xlim=(0, since(within.end, within)))

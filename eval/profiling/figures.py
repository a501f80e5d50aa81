"""What a trace says: how long each part took, how busy a GPU was, and memory over time. Values only, no torch.

A trace is the list of events of Chrome's format as torch's profiler writes it: `ts` and `dur` in microseconds, `cat`
the kind of event. The same kinds are in the traces of torch 2.7 and 2.11.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Event = dict[str, Any]

RECORDED = "ProfilerStep#1"  # the pass after the one that warms the profiler up
ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
DEVICE_TYPES = {0: "cpu", 1: "cuda"}  # of c10::DeviceType


class Span(NamedTuple):
    """A part of what was recorded, in microseconds of the trace."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Memory:
    """Memory of one device over time.

    Attributes:
        device: As torch names it.
        ms: Since what was recorded began, of every allocation and release.
        allocated_bytes: From then on. On a processor what was allocated since the beginning and not released; what
            stood before, and its release, the profiler does not see.
        reserved_bytes: What the allocator has of the device; empty on a processor.
    """

    device: str
    ms: tuple[float, ...]
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]


def recorded_span(events: Iterable[Event]) -> Span:
    """All of what was recorded, by the host's clock; a GPU was done with it at its end."""
    (recorded,) = (event for event in events if event["name"] == RECORDED and event["cat"] == "user_annotation")
    return Span(RECORDED, recorded["ts"], recorded["ts"] + recorded["dur"])


def named_spans(events: Iterable[Event], names: Collection[str]) -> list[Span]:
    """The parts of these names, by their beginning; one that holds others stands before them."""
    spans = [
        Span(event["name"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["name"] in names and event.get("cat") == "user_annotation"
    ]
    return sorted(spans, key=lambda span: (span.start, -span.end))


def own_ms(spans: Sequence[Span]) -> dict[str, float]:
    """Milliseconds of each name, without the parts within it that have a name of their own."""
    own: dict[str, float] = defaultdict(float)
    around: list[Span] = []
    for span in spans:
        while around and around[-1].end <= span.start:
            around.pop()
        own[span.name] += (span.end - span.start) / 1000
        if around:
            own[around[-1].name] -= (span.end - span.start) / 1000
        around.append(span)
    return dict(own)


def gpu_busy_share(events: Iterable[Event], within: Span) -> float:
    """Share of the time in which a GPU did anything, however many of its streams at once."""
    work = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") in ON_GPU)
    busy, done = 0.0, within.start
    for start, end in work:
        start, end = max(start, done), min(end, within.end)  # noqa: PLW2901  # what of it is new
        if end > start:
            busy, done = busy + end - start, end
    return busy / (within.end - within.start)


def memory_over_time(events: Iterable[Event], within: Span) -> list[Memory]:
    """Of every device that memory was taken of, a processor first."""
    changes: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["name"] == "[memory]" and within.start <= event["ts"] <= within.end:
            changes[device_of(event["args"])].append(event)
    return [of_device(device, changes[device], within) for device in sorted(changes)]


def device_of(args: Event) -> str:
    """The name of a device."""
    kind = DEVICE_TYPES.get(args["Device Type"], f"device type {args['Device Type']}")
    return kind if kind == "cpu" else f"{kind}:{args['Device Id']}"


def of_device(device: str, changes: list[Event], within: Span) -> Memory:
    """Memory of one device, from the changes of it."""
    changes.sort(key=lambda event: event["ts"])
    first = changes[0]["args"]
    before = first["Total Allocated"] - first["Bytes"] if device == "cpu" else 0
    return Memory(
        device,
        tuple((event["ts"] - within.start) / 1000 for event in changes),
        tuple(event["args"]["Total Allocated"] - before for event in changes),
        () if device == "cpu" else tuple(event["args"]["Total Reserved"] for event in changes),
    )

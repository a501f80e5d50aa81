"""What a stage is given, and how it says that something was left out.

A stage is a function from a Setting to rows, each a flat dict of plain values, yielded as soon as it is measured: what
was yielded is kept if the stage is cut off. A row that holds `skipped` says why a measurement was left out.
"""

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from architectures.settings import has_bfloat16
from eval.large_targets import free_bytes
from eval.models import one_line

Size = Literal["full", "laptop", "tiny"]
Row = dict[str, Any]


class SkippedError(Exception):
    """A whole stage cannot be run here; the text says why."""


@dataclass(frozen=True)
class Setting:
    """Where and how large a stage is measured.

    Attributes:
        device: "cuda:0", or the processor.
        size: "full" for a GPU of 80 GB; "laptop" for two cores; "tiny" for a test of the script itself.
        target: Folder of SmolLM2-135M-Instruct; of a random likeness where the size is tiny.
        prompts: A file of prompts, as `--prompts` of the commands takes it.
        work: Scratch, shared by all stages of a machine; may be empty again in the next call.
        out: Holds what comes back beside the record: a few files of a few MiB.
        deadline_s: Of time.monotonic(); what has not begun by then is left out.
    """

    device: torch.device
    size: Size
    target: Path
    prompts: Path
    work: Path
    out: Path
    deadline_s: float

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; below zero behind it."""
        return self.deadline_s - time.monotonic()


Stage = Callable[[Setting], Iterator[Row]]


def number_type(device: torch.device) -> torch.dtype:
    """bfloat16 where the device has instructions for it, else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if has_bfloat16() else torch.float32


def lack_of_memory(setting: Setting, needed_bytes: int, what: str) -> str | None:
    """Why something cannot be measured here, a tenth of the free memory kept for the allocator; None where it can."""
    free = free_bytes(setting.device)
    if free is None or needed_bytes <= 0.9 * free:
        return None
    return f"{what} takes {needed_bytes / 2**30:.1f} GiB, and {setting.device} has {free / 2**30:.1f} GiB free"


def lack_of_time(setting: Setting, needed_s: float, what: str) -> str | None:
    """Why something is not begun: it takes longer than is left of the stage's time. None where it fits."""
    if needed_s <= setting.left_s:
        return None
    return f"{what} takes about {needed_s:.0f} s, and {max(0.0, setting.left_s):.0f} s are left"


def attempt(cell: Row, measure: Callable[[], Row]) -> Row:
    """The cell with its measurement, or with the reason why it was left out or failed."""
    [row] = attempt_rows(cell, lambda: [cell | measure()])
    return row


def attempt_rows(cell: Row, measure: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """The rows of a measurement as they come; if it ends early, then a row of the cell with the reason."""
    try:
        yield from measure()
        outcome = None
    except SkippedError as error:
        outcome = {"skipped": str(error)}
    except torch.cuda.OutOfMemoryError as error:
        outcome = {"skipped": one_line(error)}
    except Exception as error:  # whatever it is, the other measurements are worth having
        outcome = {"failed": one_line(error)}
    free_memory()  # behind the except clauses, whose error holds on to all that was computed
    if outcome is not None:
        yield cell | outcome


def free_memory() -> None:
    """Release unreferenced objects, and the memory torch keeps of them on the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

"""`--profile DIR`: one training step recorded by torch's profiler, after one that warms it up."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from architectures.errors import UserError
from architectures.files import partial_path, write_text
from architectures.settings import Flag

if TYPE_CHECKING:
    import torch

OPERATIONS = 30  # in the table

ProfileFolder = Annotated[
    Path | None,
    Field(description="Record a training step: trace and table."),
    Flag(metavar="DIR"),
]


def require_profile_folder(folder: Path) -> None:
    """Make the folder where there is none; files in it stay, except for an older profile, which is replaced.

    Raises:
        UserError: If it is a file, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--profile {folder}: is no folder ({error.strerror}). Name another.") from error


class Recording:
    """A profiler over two passes of the same work: call start, do it, step, do it again, step."""

    def __init__(self, device: "torch.device"):
        from torch.profiler import ProfilerActivity, profile, schedule

        self.device = device
        self.profiler = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])],
            schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
            record_shapes=True,
            profile_memory=True,
            acc_events=True,  # there is one cycle; without, torch 2.11 warns of others' loss
        )

    def start(self) -> None:
        self.synchronize()
        self.profiler.start()

    def step(self) -> None:
        """End a pass, once the device is done with it, and begin the next if there is one."""
        self.synchronize()
        self.profiler.step()

    def stop(self) -> None:
        """End recording, also in the middle of a pass."""
        self.profiler.stop()

    def synchronize(self) -> None:
        from eval.machine import clock_s

        clock_s(self.device)

    def write(self, folder: Path, name: str) -> None:
        """Write trace and table of the second pass; an older profile of that name is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        trace = folder / f"{name}.pt.trace.json.gz"
        partial = partial_path(trace).with_suffix(".partial.gz")  # torch compresses what is called so
        try:
            self.profiler.export_chrome_trace(str(partial))
            partial.replace(trace)
        finally:
            partial.unlink(missing_ok=True)
        by = "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        table = self.profiler.key_averages().table(sort_by=by, row_limit=OPERATIONS, max_name_column_width=70)
        write_text(table, folder / f"{name}.txt")

"""`--profile DIR`: record one training step with torch's profiler, after a warm-up step."""

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
    """Make the directory if missing; an older profile in it is replaced, other files stay.

    Raises:
        UserError: If it is a file, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--profile {folder}: is no folder ({error.strerror}). Name another.") from error


class StepTrace:
    """Profiler over two passes of the same work: call start, run it, step, run it again, step."""

    def __init__(self, device: "torch.device"):
        from torch.profiler import ProfilerActivity, profile, schedule

        self.device = device
        self.profiler = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])],
            schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
            record_shapes=True,
            profile_memory=True,
            acc_events=True,  # a single cycle; without this, torch 2.11 warns about lost events
        )

    def start(self) -> None:
        self.synchronize()
        self.profiler.start()

    def step(self) -> None:
        """End a pass, once the device has finished it, and begin the next if there is one."""
        self.synchronize()
        self.profiler.step()

    def stop(self) -> None:
        self.profiler.stop()

    def synchronize(self) -> None:
        from eval.machine import clock_s

        clock_s(self.device)

    def write(self, folder: Path, name: str) -> None:
        """Write trace and table of the second pass, replacing an older profile of that name."""
        folder.mkdir(parents=True, exist_ok=True)
        trace = folder / f"{name}.pt.trace.json.gz"
        partial = partial_path(trace).with_suffix(".partial.gz")  # torch compresses if the name ends in .gz
        try:
            self.profiler.export_chrome_trace(str(partial))
            partial.replace(trace)
        finally:
            partial.unlink(missing_ok=True)
        by = "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        table = self.profiler.key_averages().table(sort_by=by, row_limit=OPERATIONS, max_name_column_width=70)
        write_text(table, folder / f"{name}.txt")

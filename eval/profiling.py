"""`--profile DIR`: one training step recorded by torch's profiler, after one that warms it up."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from architectures.errors import UserError
from architectures.files.atomic import partial_path, write_text
from architectures.settings.flags import Flag

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
        UserError: If it is a file, or nothing can be written there.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--profile {folder}: is a file. Name a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"--profile {folder}: cannot be written to ({error.strerror}). Name another folder.") from error


@dataclass(frozen=True)
class Profile:
    """What was recorded: its files, and the milliseconds of each named part on the host's clock."""

    files: tuple[Path, ...]
    parts_ms: dict[str, float]
    top_operation: str

    def describe(self) -> str:
        parts = ", ".join(f"{name} {ms:.1f} ms" for name, ms in self.parts_ms.items())
        return f"{parts}; slowest operation {self.top_operation}"


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

    def written(self, folder: Path, name: str, parts: Collection[str]) -> Profile:
        """Write trace and table of the second pass; an older profile of that name is replaced.

        Args:
            folder: That takes them.
            name: Of what was recorded.
            parts: Names that record_function gave to parts of it.
        """
        from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]

        folder.mkdir(parents=True, exist_ok=True)
        trace, table = folder / f"{name}.pt.trace.json.gz", folder / f"{name}.txt"
        partial = partial_path(trace).with_suffix(".partial.gz")  # torch compresses what is called so
        try:
            self.profiler.export_chrome_trace(str(partial))
            partial.replace(trace)
        finally:
            partial.unlink(missing_ok=True)
        by = "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        averages = self.profiler.key_averages()
        operations = [each for each in averages if not each.is_user_annotation]
        named = [each for each in averages if each.key in parts and each.device_type == DeviceType.CPU]
        parts_ms = {each.key: each.cpu_time_total / 1000 for each in named}
        profile = Profile((trace, table), parts_ms, max(operations, key=lambda each: getattr(each, by)).key)
        rows = averages.table(sort_by=by, row_limit=OPERATIONS, max_name_column_width=70)
        write_text(f"{name}: {profile.describe()}\n\n{rows}", table)
        return profile

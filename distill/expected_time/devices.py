"""Which device times are told of: the one named, else this machine's GPU, else its processor. No torch.

What is known of it is a file that was measured there, else what its maker publishes, else nothing.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from architectures.checkpoints.manifest import hardware
from architectures.errors import UserError
from architectures.pages.counts import number_of
from architectures.shipped.folders import shipped_folders
from distill.expected_time.device_figures import DeviceFigures, load_figures

FOLDERS = shipped_folders("devices", in_checkout="benchmarks/results/devices")
PROCESSOR = re.compile(r", \d+ cores$")


@dataclass(frozen=True)
class Published:
    """What the maker of a GPU says of it.

    Attributes:
        name: As the driver calls it.
        peak_flops: A second, dense, by precision of training.
        bandwidth_gb_s: Of its memory.
        memory_gib: How much of it there is, as torch tells it; None where nobody says.
    """

    name: str
    peak_flops: Mapping[str, float]
    bandwidth_gb_s: float
    memory_gib: float | None = None


# Source: NVIDIA's data sheets of H100, H200 and A100; without sparsity.
PUBLISHED = (
    Published("NVIDIA H100 80GB HBM3", {"amp_bf16": 989e12, "fp32": 67e12}, 3350, 79.1),
    Published("NVIDIA H100 PCIe", {"amp_bf16": 756e12, "fp32": 51e12}, 2000, 79.1),
    Published("NVIDIA H200", {"amp_bf16": 989e12, "fp32": 67e12}, 4800, 139.8),
    Published("NVIDIA A100-SXM4-80GB", {"amp_bf16": 312e12, "fp32": 19.5e12}, 2039, 79.1),
)


@dataclass(frozen=True)
class Device:
    """A device, and what is known of it.

    Attributes:
        name: As the driver, or the system, calls it.
        figures: Measured there; None where nobody has.
        published: By its maker; None where it is not in our table.
    """

    name: str
    figures: DeviceFigures | None = None
    published: Published | None = None

    @property
    def is_processor(self) -> bool:
        """Whether it is no GPU."""
        return PROCESSOR.search(self.name) is not None

    @property
    def slug(self) -> str:
        return slug_of(self.name)


def slug_of(name: str) -> str:
    """The name of a device's file, without .json: "NVIDIA H100 80GB HBM3" has nvidia-h100-80gb-hbm3."""
    return re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")


def this_device_name() -> str:
    """The first GPU's name as its driver tells it, else the processor's with its cores: "AMD EPYC, 2 cores"."""
    return gpu_name() or processor_device_name()


def processor_device_name() -> str:
    """The processor and the cores this process may use."""
    machine = hardware()
    processor, cores = machine["processor"], machine["cores"]
    return processor if cores is None else f"{processor}, {number_of(cores, 'core')}"


def gpu_name() -> str | None:
    """What nvidia-smi calls the first GPU; None where there is no such program or no GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        answered = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    names = answered.stdout.splitlines() if answered.returncode == 0 else []
    return names[0].strip() if names else None


def find_device(wanted: str | None, folders: tuple[Path, ...] | None = None) -> Device:
    """The device of a name, a slug or a file; this machine's where nothing is wanted.

    Raises:
        UserError: If nothing is known of the wanted one, or its file is broken.
    """
    if wanted is None:
        return known_device(this_device_name(), folders)
    if wanted.endswith(".json") or Path(wanted).is_file():
        figures = load_figures(Path(wanted))
        return Device(figures.device, figures, published_of(figures.device))
    device = known_device(wanted, folders)
    if device.figures is None and device.published is None and device.slug != slug_of(this_device_name()):
        raise UserError(
            f"--device {wanted}: is no device that anything is known of. There are {', '.join(known_slugs(folders))}; "
            "or name a file that `python -m benchmarks.gpu` wrote."
        )
    return device


def known_device(name: str, folders: tuple[Path, ...] | None = None) -> Device:
    """What is known of a device; of one that nobody knows, its name."""
    file = device_files(folders).get(slug_of(name))
    figures, published = None if file is None else load_figures(file), published_of(name)
    own = figures.device if figures else published.name if published else name
    return Device(own, figures, published)


def published_of(name: str) -> Published | None:
    """The row of our table with this name or slug."""
    return next((row for row in PUBLISHED if slug_of(row.name) == slug_of(name)), None)


def device_files(folders: tuple[Path, ...] | None = None) -> dict[str, Path]:
    """Every device file by its slug, of the first folder that is there."""
    folder = next((each for each in folders or FOLDERS if each.is_dir()), None)
    return {} if folder is None else {file.stem: file for file in sorted(folder.glob("*.json"))}


def known_slugs(folders: tuple[Path, ...] | None = None) -> list[str]:
    """What --device takes beside a file: devices that were measured, then those whose figures are published."""
    published = [slug_of(row.name) for row in PUBLISHED]
    return list(dict.fromkeys([*device_files(folders), *published]))

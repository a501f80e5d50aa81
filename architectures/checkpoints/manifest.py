"""manifest.json: where an artifact came from, and whether it is still the one its inputs would make.

Never imports torch, so `widedraft check` may use it.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Unpack

from architectures.checkpoints.fingerprint_parts import differences, parts_of
from architectures.checkpoints.manifest_record import Details, Hardware, Manifest, Provenance, StageName, manifest_of
from architectures.files.atomic import write_json
from architectures.files.masked_words import masked

MANIFEST_NAME = "manifest.json"
PACKAGES = ("widedraft", "torch", "transformers", "mosaicml", "datasets", "tokenizers", "safetensors", "numpy")


def write_manifest(folder: Path, *, stage: StageName, inputs: Mapping[str, str], **details: Unpack[Details]) -> None:
    """Write folder/manifest.json: stage, named input fingerprints, provenance and any further details.

    Write it last: a folder without a manifest is an unfinished one.
    """
    parts = parts_of(inputs)
    record = {"stage": stage, "inputs": dict(inputs), **({"parts": parts} if parts else {})}
    write_json({**record, **details, "provenance": provenance()}, folder / MANIFEST_NAME)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a finished folder, or None where there is none.

    Raises:
        UserError: If the file is no JSON object, lacks a field or has one of another type; the message names it.
    """
    path = folder / MANIFEST_NAME
    return manifest_of(path, f"Delete {folder} and run its stage again.") if path.exists() else None


def changed_inputs(manifest: Mapping[str, Any], inputs: Mapping[str, str]) -> list[str]:
    """Names of the inputs whose fingerprints differ from the recorded ones, sorted."""
    recorded = manifest["inputs"]
    return sorted(name for name in recorded.keys() | inputs.keys() if recorded.get(name) != inputs.get(name))


def difference_words(manifest: Mapping[str, Any], changed: Sequence[str], inputs: Mapping[str, str]) -> str:
    """In which keys and files the changed inputs differ from the recorded ones; nothing where that is not known."""
    return differences(changed, manifest["inputs"], inputs, manifest.get("parts", {}))


def provenance() -> Provenance:
    """Command, code, versions and machine, as every manifest and scorecard carries them."""
    return {
        "argv": command(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "versions": {name: package_version(name) for name in PACKAGES},
        "hardware": hardware(),
    }


def command() -> list[str]:
    """This process's words without secrets, the program without the folder that this project or its environment is in.

    Cards go with a draft to the hub, where an installation's folder helps nobody and a secret helps the wrong people.
    """
    program, home = Path(sys.argv[0]), Path(__file__).parents[2]
    if program.is_absolute():
        program = program.relative_to(home) if program.is_relative_to(home) else Path(program.name)
    return [str(program), *(masked(word) for word in sys.argv[1:])]


def package_version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """The commit of this source tree, with "+changes" when files differ from it; None where git does not track it."""
    tracked = ("ls-files", "--error-unmatch", Path(__file__).name)  # an installed copy may lie inside another checkout
    described = ("describe", "--always", "--abbrev=40", "--dirty=+changes")
    try:
        run_git(*tracked)
        return run_git(*described)
    except (OSError, subprocess.CalledProcessError):
        return None


def run_git(*arguments: str) -> str:
    """Standard output of a git command in the folder of this file."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def hardware() -> Hardware:
    """Processor, usable cores, memory, and the accelerators if torch is already loaded."""
    torch = sys.modules.get("torch")
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "accelerators": [] if torch is None else accelerator_names(torch),
    }


def accelerator_names(torch: Any) -> list[str]:
    """Names of the GPUs that torch sees."""
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def processor_name() -> str:
    """The processor's own name where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()

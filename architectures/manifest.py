"""manifest.json: inputs and provenance of an artifact. No torch, so `widedraft check` may use it.

An artifact is up to date if the inputs in its manifest equal those of the current recipe; otherwise both are shown as
a diff of YAML lines.
"""

import difflib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from architectures.errors import UserError
from architectures.files import masked, read_json_object, write_json

MANIFEST_NAME = "manifest.json"
PACKAGES = ("widedraft", "torch", "transformers", "mosaicml", "datasets", "tokenizers", "safetensors", "numpy")
MAX_DIFF_LINES = 40

StageName = Literal[
    "masks",
    "scores",
    "prune",
    "generate",
    "cache",
    "distill",
    "export",
    "eval",
    "convert",
    "import-gguf",
    "export-recorded",
]
Manifest = dict[str, Any]  # "stage", "inputs", "provenance", and the stage's own entries


class SplitCounts(TypedDict):
    """Counts of training or held-out responses; `sequences` and `split` for existing conversations."""

    answers: int
    answer_tokens: int
    prompts: NotRequired[int]
    sequences: NotRequired[int]
    split: NotRequired[int]


class ResponseCounts(TypedDict):
    """Counts of prompts, of prompts dropped by reason, and of the splits."""

    prompts: int
    self_written: NotRequired[int]
    duplicates: NotRequired[int]
    too_long: NotRequired[int]
    asked_in_eval: NotRequired[int]
    train: SplitCounts
    eval: NotRequired[SplitCounts]


def write_manifest(folder: Path, *, stage: StageName, inputs: Mapping[str, Any], **details: Any) -> None:
    """Write folder/manifest.json: stage, inputs, details of the stage, provenance.

    Write it last: a directory without a manifest is unfinished.
    """
    write_json({"stage": stage, "inputs": dict(inputs), **details, "provenance": provenance()}, folder / MANIFEST_NAME)


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a finished directory; None if there is none, UserError if it is invalid."""
    path, fix = folder / MANIFEST_NAME, f"Delete {folder} and run its stage again."
    if not path.exists():
        return None
    manifest = read_json_object(path, fix)
    for key, kind in (("stage", str), ("inputs", dict)):
        if not isinstance(manifest.get(key), kind):
            raise UserError(f"{path}: {key} is missing or not a {kind.__name__}, got {manifest.get(key)!r}. {fix}")
    return manifest


def changed_inputs(manifest: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[str]:
    recorded = manifest["inputs"]
    return sorted(name for name in recorded.keys() | inputs.keys() if recorded.get(name) != inputs.get(name))


def inputs_diff(manifest: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Format recorded and current inputs as a diff of YAML lines with dotted keys; secret-looking values are masked."""
    before, now = (
        [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(flat(values).items())]
        for values in (manifest["inputs"], inputs)
    )
    lines = [
        line
        for line in difflib.unified_diff(before, now, n=0, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    ]
    more = [f"... {len(lines) - MAX_DIFF_LINES} more lines"] if len(lines) > MAX_DIFF_LINES else []
    return "\n".join([*(masked(f"  {line[0]} {line[1:]}") for line in lines[:MAX_DIFF_LINES]), *more])


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested values to dotted keys, as on the command line; lists of anything but mappings stay whole."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{name}.")
        elif isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
            for number, each in enumerate(value):
                result |= flat(each, f"{name}[{number}].")
        else:
            result[name] = list(value) if isinstance(value, tuple) else value
    return result


def provenance() -> dict[str, Any]:
    """Return command, code, versions and machine for manifests and scorecards.

    The git commit is null for untracked code, a version is null for a package that is not installed.
    """
    return {
        "argv": command(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "versions": {name: package_version(name) for name in PACKAGES},
        "hardware": hardware(),
    }


def command() -> list[str]:
    """Return this process's argv without secrets and without directories outside this project in the program's path.

    Model cards publish it with the draft: local paths are useless there, and secrets harmful.
    """
    program, home = Path(sys.argv[0]), Path(__file__).parents[1]
    if program.is_absolute():
        program = program.relative_to(home) if program.is_relative_to(home) else Path(program.name)
    return [str(program), *(masked(word) for word in sys.argv[1:])]


def package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """Return the commit of this source tree, with "+changes" if files differ from it; None if git does not track it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    tracked = [*git, "ls-files", "--error-unmatch", Path(__file__).name]  # a copy may be inside another checkout
    described = [*git, "describe", "--always", "--abbrev=40", "--dirty=+changes"]
    try:
        subprocess.run(tracked, capture_output=True, check=True)
        return subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch else [],
    }


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()

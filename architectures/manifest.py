"""manifest.json: where an artifact came from, and whether it is still the one its inputs would make.

Reads no weights beyond samples and never imports torch, so `widedraft check` may use it.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from architectures.atomic import write_json
from architectures.masked_words import masked
from architectures.reading import read_json_object

MANIFEST_NAME = "manifest.json"
PACKAGES = ("widedraft", "torch", "transformers", "mosaicml", "datasets", "tokenizers", "safetensors", "numpy")
SAMPLE_BYTES = 1 << 20
IDENTITY_FILES = ("config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja")


def write_manifest(folder: Path, *, stage: str, inputs: Mapping[str, str], **details: Any) -> None:
    """Write folder/manifest.json: stage, named input fingerprints, provenance and any further details.

    Write it last: a folder without a manifest is an unfinished one.
    """
    record = {"stage": stage, "inputs": dict(inputs), **details, "provenance": provenance()}
    write_json(record, folder / MANIFEST_NAME)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a finished folder, or None where there is none.

    Raises:
        UserError: If the file is no JSON object.
    """
    path = folder / MANIFEST_NAME
    return read_json_object(path, f"Delete {folder} and run its stage again.") if path.is_file() else None


def changed_inputs(manifest: Mapping[str, Any], inputs: Mapping[str, str]) -> list[str]:
    """Names of the inputs whose fingerprints differ from the recorded ones, sorted."""
    recorded = manifest["inputs"]
    return sorted(name for name in recorded.keys() | inputs.keys() if recorded.get(name) != inputs.get(name))


def fingerprint_value(value: Any) -> str:
    """sha256 of a JSON-able value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def fingerprint_file(path: Path) -> str:
    """sha256 of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint_checkpoint(folder: Path) -> str:
    """sha256 over a Hugging Face folder: config and tokenizer whole; of each weight file its name, size and samples.

    Three samples of 1 MiB (start, middle, end) tell two trainings of one shape apart without reading 13 GB.
    """
    digest = hashlib.sha256()
    for name in IDENTITY_FILES:
        if (folder / name).is_file():
            digest.update(f"{name}:{fingerprint_file(folder / name)}\n".encode())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}\n".encode())
        with path.open("rb") as file:
            for start in (0, max(0, size // 2 - SAMPLE_BYTES // 2), max(0, size - SAMPLE_BYTES)):
                file.seek(start)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def fingerprint_tokenizer(folder: Path) -> dict[str, str]:
    """sha256 of what makes ids of text, under "tokenizer", and of what frames a conversation, under "chat template".

    Read from the files of a Hugging Face folder, so that no tokenizer has to be loaded.
    """
    settings = read_json_file(folder / "tokenizer_config.json")
    template = settings.pop("chat_template", None)
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    files = [folder / name for name in ("tokenizer.json", "tokenizer.model")]
    contents = [fingerprint_file(path) if path.is_file() else None for path in files]
    return {"tokenizer": fingerprint_value([settings, contents]), "chat template": fingerprint_value(template)}


def read_json_file(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file.

    Raises:
        UserError: If the file is no JSON object.
    """
    return read_json_object(path, "Fetch the checkpoint again.") if path.is_file() else {}


def provenance() -> dict[str, Any]:
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
    program, home = Path(sys.argv[0]), Path(__file__).parents[1]
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


def hardware() -> dict[str, Any]:
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

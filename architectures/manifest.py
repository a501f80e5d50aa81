"""manifest.json: inputs and provenance of an artifact. No torch, so `widedraft check` may use it.

An artifact is up to date if the inputs in its manifest equal those of the current recipe; otherwise both are shown as
a diff of YAML lines.

A file counts as unchanged while size, modification and change time, inode and device equal those at the time of
hashing; the change time cannot be reset by `os.utime` or `cp -p`. As in git's index, files written less than
SETTLED_NS earlier are not cached: two writes within one tick of a file system's clock leave the same times.

Records are files below WIDEDRAFT_CACHE, else XDG_CACHE_HOME/widedraft or ~/.cache/widedraft, which may be deleted at
any time.
"""

import difflib
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from architectures.console import track
from architectures.errors import UserError
from architectures.files import MIB, masked, read_json_object, read_text, require_regular, unreadable, write_json
from architectures.target_files import generation_identity

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
    "import-text",
    "export-recorded",
]
Manifest = dict[str, Any]  # "stage", "inputs", "provenance", and the stage's own entries


class SplitCounts(TypedDict):
    """Counts of training or held-out responses; `sequences` and `split` for existing conversations.

    at_temperature has the responses of each temperature if there are several, longest the tokens of the longest prompt
    with its response.
    """

    responses: int
    response_tokens: int
    prompts: NotRequired[int]
    sequences: NotRequired[int]
    split: NotRequired[int]
    ended_by_length: NotRequired[int]
    at_temperature: NotRequired[dict[str, int]]
    longest: NotRequired[int]


class ResponseCounts(TypedDict):
    """Counts of prompts, of prompts dropped by reason, and of the splits."""

    prompts: int
    self_written: NotRequired[int]
    duplicates: NotRequired[int]
    too_long: NotRequired[int]
    asked_in_eval: NotRequired[int]
    malformed: NotRequired[dict[str, int]]
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


REMEMBERED_BYTES = 8 * MIB  # hashing a smaller file is as fast as a cache lookup
LONG_BYTES = 2048 * MIB  # minimum total size for a progress bar
SETTLED_NS = 2_000_000_000  # two seconds: the coarsest clock of a file system, FAT's
MAX_THREADS = 8


def sha256_of_file(path: Path) -> str:
    """Return the sha256 of a file, links followed; UserError if it is not a regular file or cannot be read."""
    try:
        require_regular(path, hint="Check the path.")
        before, begun_ns = file_state(path), time.time_ns()
        record = record_file(path) if before[0] >= REMEMBERED_BYTES else None
        if record is not None:
            with suppress(UserError):  # missing or damaged
                known = read_json_object(record, "")
                if known.get("state") == before and "sha256" in known:
                    return known["sha256"]
        sha256 = read_sha256(path)
        is_settled = file_state(path) == before and begun_ns - max(before[1], before[2]) >= SETTLED_NS
        if record is not None and is_settled:
            with suppress(OSError):  # read-only or full: the file will be read again
                write_json({"path": os.path.realpath(path), "state": before, "sha256": sha256}, record)
    except OSError as error:
        raise UserError(unreadable(path, error, "Check the path.")) from error
    return sha256


def read_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_files(paths: Sequence[Path], *, description: str) -> list[str]:
    """Return the sha256 of each file, several read in parallel; raises as `sha256_of_file`."""
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, MAX_THREADS)) as pool:
        hashes = pool.map(sha256_of_file, paths)
        if sum(path.stat().st_size for path in paths if path.exists()) >= LONG_BYTES:
            return list(track(hashes, description=description, total=len(paths)))
        return list(hashes)


def file_state(path: Path) -> list[int]:
    """Return size, modification and change time, inode and device: at least one changes with the content."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def record_file(path: Path) -> Path | None:
    folder = cache_folder()
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
    return None if folder is None else folder / "file_hashes" / f"{name}.json"


def cache_folder() -> Path | None:
    """Return the user's cache directory; None if there is no home directory."""
    if named := os.environ.get("WIDEDRAFT_CACHE"):
        return Path(named)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "widedraft"
    except RuntimeError:  # no HOME, and no entry of this user
        return None


FINGERPRINT_KIND = "widedraft.fingerprint/2"

# Only files that transformers reads: a licence or a note next to them changes no output. Weights in formats other than
# safetensors are rejected when they are read, and a checkpoint's own code never runs.
TOKENIZER_SETTINGS, CHAT_TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")
PARTS_OF_TOKENIZERS = ("vocab.json", "merges.txt", "vocab.txt", "special_tokens_map.json", "added_tokens.json")
IDENTITY_FILES = (
    "config.json",
    "adapter_config.json",
    *TOKENIZER_FILES,
    *PARTS_OF_TOKENIZERS,
    TOKENIZER_SETTINGS,
    CHAT_TEMPLATE,
    "chat_template.json",
    "draft_vocabulary.json",
)
IDENTITY_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.model")  # sentencepiece has many names


def fingerprint_value(value: Any) -> str:
    """Return the sha256 of a JSON-serialisable value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def fingerprint_checkpoint(folder: Path) -> str:
    """Return the sha256 over names and contents of the files of a Hugging Face directory that define the model.

    Generation settings count without ASSISTANT_KEYS, since their end tokens decide when generation stops.
    """
    names = sorted(
        {
            *(name for name in IDENTITY_FILES if (folder / name).is_file()),
            *(path.name for pattern in IDENTITY_PATTERNS for path in folder.glob(pattern)),
        }
    )
    return fingerprint_of_files(folder, names, extra=generation_identity(folder))


def fingerprint_folder(folder: Path) -> str:
    """Return the sha256 over names and contents of every file below a directory, except hidden ones."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    visible = (path for path in paths if not any(part.startswith(".") for part in path.parts))
    return fingerprint_of_files(folder, sorted(path.as_posix() for path in visible))


def fingerprint_of_files(folder: Path, names: Sequence[str], *, extra: Any = None) -> str:
    hashes = sha256_of_files([folder / name for name in names], description=f"hashing {folder}")
    return fingerprint_value([FINGERPRINT_KIND, extra, *zip(names, hashes, strict=True)])


def fingerprint_tokenizer(folder: Path) -> dict[str, str]:
    """Return the sha256 of the files that map text to ids ("tokenizer"), and of the chat template ("chat template").

    Reads the files of a Hugging Face directory without loading a tokenizer.
    """
    settings = read_json_file(folder / TOKENIZER_SETTINGS)
    template = chat_template(folder, settings.pop("chat_template", None))
    contents = [sha256_of_file(folder / name) if (folder / name).is_file() else None for name in TOKENIZER_FILES]
    parts = [[name, sha256_of_file(folder / name)] for name in PARTS_OF_TOKENIZERS if (folder / name).is_file()]
    return {
        "tokenizer": fingerprint_value([settings, contents, *parts]),
        "chat template": fingerprint_value(template),
    }


def chat_template(folder: Path, among_settings: Any) -> Any:
    """Return the chat template: its own file, else the entry of tokenizer_config.json; None if there is neither."""
    file = folder / CHAT_TEMPLATE
    return read_text(file, hint="Download the checkpoint again.") if file.is_file() else among_settings


def read_json_file(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no such file."""
    return read_json_object(path, "Download the checkpoint again.") if path.exists() else {}

"""SHA-256 of files, values and checkpoints; hashes of large files are cached on this machine.

A file counts as unchanged while size, modification and change time, inode and device equal those at the time of
hashing; the change time cannot be reset by `os.utime` or `cp -p`. As in git's index, files written less than
SETTLED_NS earlier are not cached: two writes within one tick of a file system's clock leave the same times.

Records are files below WIDEDRAFT_CACHE, else XDG_CACHE_HOME/widedraft or ~/.cache/widedraft, which may be deleted at
any time.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.files import MIB, read_json_object, read_text, require_regular, unreadable, write_json
from architectures.progress import track
from architectures.target_files import SETTINGS_NAME, generation_identity

REMEMBERED_BYTES = 8 * MIB  # hashing a smaller file is as fast as a cache lookup
LONG_BYTES = 2048 * MIB  # minimum total size for a progress bar
SETTLED_NS = 2_000_000_000  # two seconds: the coarsest clock of a file system, FAT's
MAX_THREADS = 8


def sha256_of_file(path: Path) -> str:
    """Return the sha256 of a file, links followed; UserError if it is not a regular file or cannot be read."""
    try:
        require_regular(path, remedy="Check the path.")
        before, begun_ns = file_state(path), time.time_ns()
        if (known := recall(path, before)) is not None:
            return known
        sha256 = read_sha256(path)
        if file_state(path) == before and begun_ns - max(before[1], before[2]) >= SETTLED_NS:
            remember(path, before, sha256)
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


def recall(path: Path, state: list[int]) -> str | None:
    """Return the cached sha256 of a file in this state; None if there is none."""
    record = record_file(path)
    if state[0] < REMEMBERED_BYTES or record is None:
        return None
    try:
        known = read_json_object(record, "")
    except UserError:  # missing or damaged
        return None
    return known.get("sha256") if known.get("state") == state else None


def remember(path: Path, state: list[int], sha256: str) -> None:
    """Cache the sha256 of a large file, if possible."""
    record = record_file(path)
    if state[0] < REMEMBERED_BYTES or record is None:
        return
    try:
        write_json({"path": os.path.realpath(path), "state": state, "sha256": sha256}, record)
    except OSError:  # read-only or full: the file will be read again
        return


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


def fingerprint_file(path: Path) -> str:
    return sha256_of_file(path)


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
    has_settings = any((folder / name).is_file() for name in (SETTINGS_NAME, "config.json"))
    return fingerprint_of_files(folder, names, extra=generation_identity(folder) if has_settings else None)


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
    contents = [fingerprint_file(folder / name) if (folder / name).is_file() else None for name in TOKENIZER_FILES]
    parts = [[name, fingerprint_file(folder / name)] for name in PARTS_OF_TOKENIZERS if (folder / name).is_file()]
    return {
        "tokenizer": fingerprint_value([settings, contents, *parts]),
        "chat template": fingerprint_value(template),
    }


def chat_template(folder: Path, among_settings: Any) -> Any:
    """Return the chat template: its own file, else the entry of tokenizer_config.json; None if there is neither."""
    file = folder / CHAT_TEMPLATE
    return read_text(file, remedy="Fetch the checkpoint again.") if file.is_file() else among_settings


def read_json_file(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no such file."""
    return read_json_object(path, "Fetch the checkpoint again.") if path.exists() else {}

"""Files and folders that are either whole or absent, also after a crash.

What is being written stands beside its place under a name that nobody can guess, and is always made anew: a link that
somebody put there is never written through, and two processes that write the same file do not meet.
"""

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

PARTIAL_NAME = re.compile(r".+\.[0-9a-f]{16}\.partial")


def write_text(text: str, path: Path) -> None:
    """Write text to path as UTF-8, whole or not at all."""
    write_bytes(text.encode("utf-8"), path)


def write_bytes(content: bytes, path: Path) -> None:
    """Write a file through a neighbouring one and a rename, so that no reader sees half of it."""
    with replacing(path) as file:
        file.write(content)


def write_json(value: Any, path: Path) -> None:
    """Write value as indented JSON, whole or not at all."""
    write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", path)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of path when the block succeeds, and vanishes when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of path when the block succeeds, and vanishes when it fails."""
    partial = partial_path(path)
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(path, ignore_errors=True)
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def partial_path(path: Path) -> Path:
    """A new path in the same folder for what will replace path."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")


def remove_partials(folder: Path, *, mark: str) -> None:
    """Remove what killed processes left half-written below a folder; subfolders that hold the mark are passed over.

    Call where nobody else is writing.
    """
    for path in list(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if PARTIAL_NAME.fullmatch(path.name):
            shutil.rmtree(path) if is_folder else path.unlink(missing_ok=True)
        elif is_folder and not (path / mark).exists():
            remove_partials(path, mark=mark)

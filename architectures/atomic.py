"""Files and folders that are either whole or absent, also after a crash."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_text(text: str, path: Path) -> None:
    """Write text to path as UTF-8, whole or not at all."""
    write_bytes(text.encode("utf-8"), path)


def write_bytes(content: bytes, path: Path) -> None:
    """Write a file through a neighbouring one and a rename, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(value: Any, path: Path) -> None:
    """Write value as indented JSON, whole or not at all."""
    write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", path)


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of path when the block succeeds, and vanishes when it fails."""
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(path, ignore_errors=True)
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)

"""Sizes in bytes for people, and the free space of a disk."""

import shutil
from pathlib import Path


def size(count: int) -> str:
    """Bytes for people, as wide as any other: 538060032 is " 513.1 MiB"."""
    mebibytes = count / 2**20
    return f"{mebibytes / 1024:6.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:6.1f} MiB"


def free_bytes(folder: Path) -> int:
    """Free space where a folder is or will be."""
    return shutil.disk_usage(
        next(ancestor for ancestor in (folder.absolute(), *folder.absolute().parents) if ancestor.exists())
    ).free

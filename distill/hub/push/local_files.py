"""The files of a folder that go to the hub: regular ones inside it, and whether the hub's are the same. No torch."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.files.file_hashes import sha256_of_file

if TYPE_CHECKING:
    from huggingface_hub import RepoFile

NEVER_PUSHED = (".git", ".cache")  # the hub takes no file below folders of these names
REMEDY = "Remove it, and push again."


def files_to_push(folder: Path) -> dict[str, Path]:
    """Every file below a folder by its path in the repository, in order.

    Raises:
        UserError: If there is none, a link leads out of the folder or to a folder, or a name is one that the hub or
            another system reads differently.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Give the folder that is to be pushed.")
    files = regular_files(folder, root=folder.resolve())
    by_name = {path.relative_to(folder).as_posix(): path.absolute() for path in files}  # a "~" means no home then
    if not by_name:
        raise UserError(f"{folder}: holds no file. Give the folder that is to be pushed.")
    return by_name


def regular_files(folder: Path, *, root: Path) -> Iterator[Path]:
    """The files below a folder; what is neither file nor folder is refused, as are links that leave root."""
    for path in sorted(folder.iterdir()):
        require_plain_name(path)
        if path.is_symlink() and not leads_to_file_within(path, root):
            raise UserError(f"{path}: is a link that leads out of the pushed folder or to no file. {REMEDY}")
        if path.is_dir():
            yield from regular_files(path, root=root)
        elif path.is_file():
            yield path
        else:
            raise UserError(f"{path}: is neither a file nor a folder. {REMEDY}")


def leads_to_file_within(link: Path, root: Path) -> bool:
    """Whether a link ends at a regular file below root."""
    end = link.resolve()
    return end.is_file() and end.is_relative_to(root)


def require_plain_name(path: Path) -> None:
    """Raise UserError for a name that would not be the same file on the hub and where it is downloaded."""
    name = path.name
    if name in NEVER_PUSHED or "\\" in name or name != name.strip() or not name.isprintable():
        raise UserError(f"{str(path)!r}: has a name that cannot go to the hub. {REMEDY}")


def is_on_hub(path: Path, entry: "RepoFile") -> bool:
    """Whether the hub's file has the bytes of the local one, told by size and hash."""
    if path.stat().st_size != entry.size:
        return False
    if entry.lfs is not None:
        return sha256_of_file(path) == entry.lfs.sha256
    return git_blob_id(path) == entry.blob_id


def git_blob_id(path: Path) -> str:
    """The id that git gives a file's content; for small files, which are read whole."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

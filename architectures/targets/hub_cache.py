"""Whether files in the hub's cache hold what the hub has: huggingface_hub compares their sizes alone. No torch.

A file of a snapshot is a link to a blob that is named by the hub's hash: of a large file the sha256 of its bytes, of a
small one the id git gives it. Where there are no links, as on some systems, nothing is said.
"""

import hashlib
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from architectures.errors import UserError
from architectures.files.file_hashes import sha256_of_file

SHA256, SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


def refuse_damaged(folder: Path, patterns: Sequence[str]) -> None:
    """Raise UserError for the first file of a snapshot whose bytes are not those that the hub named.

    Args:
        folder: A snapshot, whose files are links.
        patterns: Of the files that are looked at, as huggingface_hub takes them.
    """
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink()):
        name = path.relative_to(folder).as_posix()
        if any(fnmatch(name, pattern) for pattern in patterns) and is_damaged(path):
            raise UserError(
                f"{path}: holds other bytes than the hub has: its hash is not {path.readlink().name}. "
                f"Delete {path.resolve()} and run the command again."
            )


def is_damaged(link: Path) -> bool:
    """Whether a blob's bytes contradict its name; one with a name of another kind is not known to be."""
    name = link.readlink().name
    if SHA256.fullmatch(name):
        return sha256_of_file(link) != name
    return bool(SHA1.fullmatch(name)) and name not in sha1_names(link.read_bytes())


def sha1_names(content: bytes) -> tuple[str, str]:
    """The id that git gives a small file, and its plain sha1, which some mirrors of the hub name it by."""
    header = b"blob %d\0" % len(content)
    git, plain = (hashlib.sha1(each, usedforsecurity=False) for each in (header + content, content))
    return git.hexdigest(), plain.hexdigest()

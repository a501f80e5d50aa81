"""Values of this machine as everybody may read them: no secret, and of a path no more than its end. No torch."""

import re
from pathlib import PurePath
from typing import Any

from architectures.files.masked_words import MASK, masked

# A path from the root or the home of this machine; what follows a letter, a colon or a slash is no such path.
OWN_PATH = re.compile(r"(?<![\w:/.])(?:~[\w.-]*)?/(?:[^/\s:'\",;]+/)*([^/\s:'\",;]+)/?")


def published(value: Any) -> Any:
    """A JSON value without secrets and without folders of this machine."""
    if isinstance(value, dict):
        return {key: published_entry(str(key), entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [published(entry) for entry in value]
    if isinstance(value, PurePath):
        return published(str(value))
    return without_folders(masked(value)) if isinstance(value, str) else value


def published_entry(key: str, value: Any) -> Any:
    """The value of one key; masked whole where the key is that of a secret."""
    is_text = isinstance(value, str) and not value.startswith("${")
    return MASK if is_text and masked(f"{key}={value}").endswith(f"={MASK}") else published(value)


def without_folders(text: str) -> str:
    """A text in which a path of this machine is its last part alone."""
    return OWN_PATH.sub(r"\1", text)

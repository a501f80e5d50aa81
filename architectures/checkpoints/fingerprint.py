"""Fingerprints: what a file, a value or a checkpoint is, in 64 digits that any changed byte changes. No torch."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from architectures.checkpoints.generation_settings import SETTINGS_NAME, generation_identity
from architectures.files.file_hashes import sha256_of_file, sha256_of_files
from architectures.files.reading import read_json_object, read_text

FINGERPRINT_KIND = "widedraft.fingerprint/2"

# What transformers reads of a folder, and nothing that it does not: a licence or a note beside it changes no answer.
# Weights in other forms than safetensors are refused where they are read, and code of a folder's own never runs.
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
    """sha256 of a JSON-able value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def fingerprint_file(path: Path) -> str:
    """sha256 of a whole file; of a large one it is remembered (see file_hashes)."""
    return sha256_of_file(path)


def fingerprint_checkpoint(folder: Path) -> str:
    """sha256 over names and contents, every byte, of the files of a Hugging Face folder that make the model.

    Of the generation settings, whose end tokens decide where answers stop, the values that are of this model alone.
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
    """sha256 over names and contents of every file below a folder, hidden ones left out."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    visible = (path for path in paths if not any(part.startswith(".") for part in path.parts))
    return fingerprint_of_files(folder, sorted(path.as_posix() for path in visible))


def fingerprint_of_files(folder: Path, names: Sequence[str], *, extra: Any = None) -> str:
    """sha256 over names and contents of some files of a folder, and a value that counts too."""
    hashes = sha256_of_files([folder / name for name in names], description=f"hashing {folder}")
    return fingerprint_value([FINGERPRINT_KIND, extra, *zip(names, hashes, strict=True)])


def fingerprint_tokenizer(folder: Path) -> dict[str, str]:
    """sha256 of what makes ids of text, under "tokenizer", and of what frames a conversation, under "chat template".

    Read from the files of a Hugging Face folder, so that no tokenizer has to be loaded.
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
    """What frames conversations: a file of its own, else what stands in tokenizer_config.json; None if neither."""
    file = folder / CHAT_TEMPLATE
    return read_text(file, remedy="Fetch the checkpoint again.") if file.is_file() else among_settings


def read_json_file(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file.

    Raises:
        UserError: If the file is no JSON object.
    """
    return read_json_object(path, "Fetch the checkpoint again.") if path.exists() else {}

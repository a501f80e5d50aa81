"""Fingerprints as they were made up to 2026-11-22: only to recognise what was recorded with them.

Never record one: that of a checkpoint sampled the weights, and of a 7B in three files its samples hold no matrix of an
MLP; that of a tokenizer left out the files that older tokenizers are kept in.
"""

import hashlib
from pathlib import Path

from architectures.checkpoints.fingerprint import (
    CHAT_TEMPLATE,
    TOKENIZER_FILES,
    TOKENIZER_SETTINGS,
    fingerprint_checkpoint,
    fingerprint_file,
    fingerprint_tokenizer,
    fingerprint_value,
    read_json_file,
)
from architectures.files.reading import MIB

IDENTITY_FILES = ("config.json", *TOKENIZER_FILES, TOKENIZER_SETTINGS, CHAT_TEMPLATE)
ADOPTED = "made with an older kind of fingerprint (samples of 3 MiB a file); equal by it, adopted"


def today_by_older(folder: Path) -> dict[str, str]:
    """Today's fingerprints of a checkpoint and its tokenizer, by the older ones of the same files."""
    return {
        sampled_fingerprint(folder): fingerprint_checkpoint(folder),
        partial_tokenizer_fingerprint(folder): fingerprint_tokenizer(folder)["tokenizer"],
    }


def say_adopted(path: Path) -> None:
    """Say that something recorded by an older kind is believed; from now on every byte is compared."""
    print(f"   {path}: {ADOPTED}", flush=True)


def partial_tokenizer_fingerprint(folder: Path) -> str:
    """sha256 of tokenizer.json, tokenizer.model and the settings, without any other file."""
    settings = read_json_file(folder / TOKENIZER_SETTINGS)
    settings.pop("chat_template", None)
    paths = [folder / name for name in TOKENIZER_FILES]
    return fingerprint_value([settings, [fingerprint_file(path) if path.is_file() else None for path in paths]])


def sampled_fingerprint(folder: Path) -> str:
    """sha256 of the config and tokenizer, and of each weight file's name, size, start, middle and end, 1 MiB each."""
    digest = hashlib.sha256()
    for name in IDENTITY_FILES:
        if (folder / name).is_file():
            content = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            digest.update(f"{name}:{content}\n".encode())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}\n".encode())
        with path.open("rb") as file:
            for start in (0, max(0, size // 2 - MIB // 2), max(0, size - MIB)):
                file.seek(start)
                digest.update(file.read(MIB))
    return digest.hexdigest()

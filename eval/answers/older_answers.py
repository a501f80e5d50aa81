"""Answers whose folder an earlier widedraft claimed with an older kind of fingerprint: compared and adopted, once."""

from collections.abc import Mapping
from pathlib import Path

from architectures.checkpoints.older_fingerprint import say_adopted, today_by_older
from architectures.files.atomic import write_json
from eval.answers.shards import SETTINGS_NAME, read_claims

MODEL_KEYS = ("target", "tokenizer")  # of settings, fingerprints of a checkpoint or its tokenizer


def adopt_older_answers(folder: Path, target: Path) -> None:
    """Put today's fingerprints of the target in the place of older ones that it still has, and say so."""
    if read_claims(folder) and adopt_claims(folder, today_by_older(target)):
        say_adopted(folder)


def adopt_claims(folder: Path, same: Mapping[str, str]) -> bool:
    """Replace a folder's fingerprints of an older kind, given today's by the older ones; whether there are any."""
    claims = read_claims(folder)
    all_settings = [claim["settings"] for claim in claims.values()]
    is_new = False
    for settings, key in ((each, key) for each in all_settings for key in MODEL_KEYS if each.get(key) in same):
        is_new |= settings[key] != same[settings[key]]  # a tokenizer in one file has one fingerprint of both kinds
        settings[key] = same[settings[key]]
    if is_new:
        write_json(claims, folder / SETTINGS_NAME)
    return is_new

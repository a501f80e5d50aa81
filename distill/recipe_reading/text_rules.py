"""What a text of a recipe may hold: characters that can be written, and `${...}` whose work is known beforehand."""

import re

from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError

from architectures.settings.requirements import shown

MOST_CHARACTERS = 2000  # of a text with ${...}

UNUSABLE = re.compile("[\0\ud800-\udfff]")  # no file can be named with it, nor written in UTF-8
ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\\$\{")
INNERMOST = re.compile(r"\$\{([^${}]*)\}")
KEY = re.compile(r"\s*(\.*)([\w-]+(?:\.[\w-]+|\[[\w-]+\])*)\s*")
ENVIRONMENT = re.compile(r"\s*oc\.env\s*:\s*\w+\s*(?:,[^$]*)?")
KEYLESS, ALLOWED, WRONG = "\ue000", "\ue001", "${"  # stand for a ${...}: whose value names no keys; that may; neither
NAMES_KEYS = re.compile("['\"\\\\\ue001]")  # a default with one of these may become a ${key} when it is decoded
DECODED = re.compile("\\s*oc\\.decode\\s*:\\s*\ue000\\s*")


def unusable_text(text: str) -> str | None:
    """Why a text can be neither a path nor written to a file, None if it can be both."""
    if UNUSABLE.search(text):
        return f"must be text of whole characters without NUL, got {shown(text)}. Leave out what is no character."
    return None


def filling_problem(text: str) -> str | None:
    """Why the `${...}` of a text may not stand in a recipe, None if they may.

    Allowed are `${key}`, `${oc.env:NAME}`, also with a default, and `${oc.decode:${oc.env:NAME}}`: what others bring
    is not known before they are filled in.
    """
    if len(text) > MOST_CHARACTERS:
        return f"must be text of at most {MOST_CHARACTERS} characters where ${{...}} stands in it, got {shown(text)}."
    plain, num_replaced = ESCAPED.sub("", text), 1
    while num_replaced:
        plain, num_replaced = INNERMOST.subn(_form, plain)
    try:
        OmegaConf.create({"key": text})
    except GrammarParseError:
        return (
            f"must be text with a whole ${{key}}, got {shown(text)}. Close the brace, or write \\${{ to mean the signs."
        )
    if "${" in plain:
        return f"must fill in ${{key}}, ${{oc.env:NAME}} or ${{oc.decode:${{oc.env:NAME}}}} alone, got {shown(text)}."
    return None


def _form(match: re.Match[str]) -> str:
    """What stands for an inner `${...}` while those around it are looked at."""
    inside = match[1]
    if ENVIRONMENT.fullmatch(inside):
        return KEYLESS if not NAMES_KEYS.search(inside) else ALLOWED
    return ALLOWED if KEY.fullmatch(inside) or DECODED.fullmatch(inside) else WRONG

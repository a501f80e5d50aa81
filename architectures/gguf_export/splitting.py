"""`tokenizer.ggml.pre`: llama.cpp's name for the way a byte-level tokenizer splits text into words. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from architectures.gguf.importing import known_splittings

WORDS, BYTES = ("ByteLevel", "words"), ("ByteLevel", "bytes")
DIGITS = ("Digits", "each")
BY_PARTS = {(WORDS,): "gpt-2", (DIGITS, WORDS): "smollm"}
# Names of those in transformers' table of patterns, by whether a word that is a token stays whole whatever the merges
# say: llama.cpp knows that by the name alone.
NAMES = {False: ("qwen2", "gpt-4o", "smaug-bpe"), True: ("llama-bpe", "tekken")}


def splitting_name(tokenizer: Mapping[str, Any]) -> str | None:
    """The name of the splitting of a byte-level tokenizer.json; None where llama.cpp has none that is known here."""
    parts = tuple(part_name(part) for part in flattened(tokenizer.get("pre_tokenizer")))
    keeps_words = bool(tokenizer["model"].get("ignore_merges"))
    if parts in BY_PARTS and not keeps_words:
        return BY_PARTS[parts]
    if len(parts) != 2 or parts[0][0] != "Split" or parts[1] != BYTES:
        return None
    patterns = known_splittings()
    return next((name for name in NAMES[keeps_words] if patterns.get(name) == parts[0][1]), None)


def merge_text(merge: str | Sequence[str]) -> str:
    """A merge as GGUF files write it; tokenizer.json has it so or as a pair."""
    return merge if isinstance(merge, str) else " ".join(merge)


def flattened(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer."""
    if part is None:
        return
    inner = part.get("pretokenizers", part.get("normalizers")) if part["type"] == "Sequence" else None
    if inner is None:
        yield part
    else:
        for step in inner:
            yield from flattened(step)


def part_name(part: Mapping[str, Any]) -> tuple[str, str]:
    """A step of a pre-tokenizer; what is not known gets a name that nothing has."""
    if part["type"] == "ByteLevel" and not part.get("add_prefix_space"):
        return WORDS if part.get("use_regex", True) else BYTES
    if part["type"] == "Digits" and part.get("individual_digits"):
        return DIGITS
    # Removing all that matches the inverse leaves what isolating the matches leaves, for patterns that match all text
    if part["type"] == "Split" and (part["behavior"], bool(part.get("invert"))) in (
        ("Isolated", False),
        ("Removed", True),
    ):
        return "Split", part["pattern"].get("Regex", "")
    return "unknown", ""

"""SentencePiece vocabularies of the BPE kind, from a tokenizer.json: scores, and the space before a text. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from architectures.gguf_export.splitting import flattened

SPACE = "▁"
PREPEND, REPLACE = {"type": "Prepend", "prepend": SPACE}, {"type": "Replace", "content": SPACE}
BELOW_ALL = -1e4  # for pieces that no merge makes; llama.cpp never asks for their score


def is_sentencepiece(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json is a BPE that spells unknown characters as bytes: Llama 2's kind."""
    return tokenizer["model"]["type"] == "BPE" and bool(tokenizer["model"].get("byte_fallback"))


def piece_scores(tokens: Sequence[str], merges: Sequence[str]) -> list[float] | None:
    """A score for each token, by which llama.cpp merges in the order of the merges.

    It joins the pair whose whole has the highest score. So the n-th whole that the merges name gets -n; None where they
    are not in the order of their wholes, and no scores can say what they say.
    """
    order: dict[str, int] = {}
    last = None
    for merge in merges:
        whole = merge.replace(" ", "")
        if whole != last and whole in order:
            return None
        order.setdefault(whole, len(order))
        last = whole
    return [-float(order[token]) if token in order else BELOW_ALL for token in tokens]


def begins_with_space(tokenizer: Mapping[str, Any]) -> bool | None:
    """Whether a space is put before a text; None where its spaces are treated in a way that is not known."""
    normalizer = [plain(part) for part in flattened(tokenizer.get("normalizer"))]
    splitter = list(flattened(tokenizer.get("pre_tokenizer")))
    if not splitter and normalizer in ([PREPEND, REPLACE], [REPLACE]):
        return normalizer[0] == PREPEND
    if normalizer or len(splitter) != 1 or splitter[0]["type"] != "Metaspace":
        return None
    space = splitter[0]
    if space.get("replacement") != SPACE or space.get("split", True):
        return None
    return {"always": True, "first": True, "never": False}.get(space.get("prepend_scheme", "always"))


def plain(part: Mapping[str, Any]) -> dict[str, Any]:
    """A step of a normalizer as it is compared here."""
    if part["type"] == "Replace" and part.get("pattern") == {"String": " "}:
        return {"type": "Replace", "content": part["content"]}
    return dict(part)

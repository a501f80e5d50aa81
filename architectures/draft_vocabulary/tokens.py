"""What the ids of a target's tokenizer are, read from its files: which there are, and which a draft always outputs.

A draft that can output every single byte can spell any text, and one that can output every special token can end it.
No torch
and no transformers: `widedraft check` answers at once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from architectures.checkpoints.fingerprint import TOKENIZER_SETTINGS
from architectures.checkpoints.generation_settings import SPECIAL_IDS, read_generation_settings
from architectures.errors import UserError
from architectures.files.reading import read_json_object

TOKENIZER = "tokenizer.json"
REMEDY = "Fetch the checkpoint again."
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTED = ("additional_special_tokens", "extra_special_tokens")
# GPT-2's signs for bytes: themselves where they can be printed, and 68 letters from 256 on for the others.
BYTE_SIGNS = frozenset(map(chr, [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]))
BYTE_NAMES = frozenset(f"<0x{byte:02X}>" for byte in range(256))  # of sentencepiece's byte fallback


@dataclass(frozen=True)
class Tokens:
    """The ids of a tokenizer that its model has rows for.

    Attributes:
        ids: All of them; not the rows that pad a vocabulary, which no token has.
        special: Of special tokens, and where texts begin, end and are padded.
        single_bytes: Of tokens that are one byte.
        ends: Where the model's answers stop.
    """

    ids: frozenset[int]
    special: frozenset[int]
    single_bytes: frozenset[int]
    ends: frozenset[int]

    @property
    def always(self) -> frozenset[int]:
        """Ids that are kept however seldom they occur."""
        return self.special | self.single_bytes


def read_tokens(folder: Path, vocab_size: int) -> Tokens:
    """The tokens of a checkpoint folder that holds a tokenizer.json.

    Raises:
        UserError: If that or one of the files beside it is damaged.
    """
    return tokens_of(read_json_object(folder / TOKENIZER, REMEDY), folder, vocab_size)


def tokens_of(tokenizer: Mapping[str, Any], folder: Path, vocab_size: int) -> Tokens:
    """The same of a tokenizer that is read already.

    Args:
        tokenizer: What tokenizer.json holds, or would hold.
        folder: Of the checkpoint, whose settings name special tokens too.
        vocab_size: Ids from here on have no row.
    """
    settings = folder / TOKENIZER_SETTINGS
    config = read_json_object(settings, REMEDY) if settings.is_file() else {}
    try:
        by_text = {
            **vocabulary(tokenizer["model"]),
            **{token["content"]: token["id"] for token in tokenizer["added_tokens"]},
        }
        special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
        special |= {by_text[text] for text in named_special(config) if text in by_text}
        signs = BYTE_NAMES | (BYTE_SIGNS if splits_into_bytes(tokenizer) else frozenset())
        single_bytes = {by_text[sign] for sign in signs if sign in by_text}
        ids = frozenset(number for number in by_text.values() if number < vocab_size)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{folder / TOKENIZER}: is no tokenizer ({type(error).__name__}: {error}). {REMEDY}") from error
    generation, model = read_generation_settings(folder), read_json_object(folder / "config.json", REMEDY)
    special |= {number for values in (generation, model) for key in SPECIAL_IDS for number in listed(values.get(key))}
    ends = frozenset(listed(generation.get("eos_token_id")))
    return Tokens(ids, ids & special, ids & single_bytes, ids & ends)


def tokens_beyond(folder: Path, vocab_size: int) -> dict[str, int]:
    """The added tokens of a tokenizer.json that its model has no row for, by their text."""
    added = read_json_object(folder / TOKENIZER, REMEDY).get("added_tokens") or ()
    return {token["content"]: token["id"] for token in added if token["id"] >= vocab_size}


def vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    """Ids by text; of a unigram model, which lists its tokens with their scores, by their index."""
    entries = model["vocab"]
    return dict(entries) if isinstance(entries, dict) else {text: number for number, (text, _) in enumerate(entries)}


def named_special(config: Mapping[str, Any]) -> Iterator[str]:
    """The texts of the special tokens that tokenizer_config.json names."""
    named = [config.get(name) for name in NAMED]
    for name in LISTED:
        entries = config.get(name) or ()
        named += entries.values() if isinstance(entries, dict) else entries
    for entry in named:
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str):
            yield text


def splits_into_bytes(tokenizer: Mapping[str, Any]) -> bool:
    """Whether tokens are written in GPT-2's signs for bytes."""
    return any(part == "ByteLevel" for name in ("pre_tokenizer", "decoder") for part in types_in(tokenizer.get(name)))


def types_in(part: Any) -> Iterator[str]:
    """The type of a part of a tokenizer, and of those that a sequence consists of."""
    if isinstance(part, dict):
        yield str(part.get("type"))
        for inner in (*part.get("pretokenizers", ()), *part.get("decoders", ())):
            yield from types_in(inner)


def listed(value: int | Iterable[int] | None) -> list[int]:
    """The ids of an entry that may hold one, several or none."""
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)

"""The tokenizer of a folder, read from its files without loading it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from architectures.checkpoints.fingerprint import TOKENIZER_SETTINGS, chat_template, read_json_file
from architectures.engines.pair.facts import Tokenizer
from architectures.files.reading import read_json

TOKENIZER_NAME = "tokenizer.json"
MOST_MIB = 512  # as eval.models.loading
REMEDY = "Copy the target's tokenizer files there."


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer | str:
    """The tokenizer, or why there is none to compare, in words.

    Args:
        folder: A Hugging Face checkpoint.
        config: Its config.json; names the special ids that tokenizer_config.json does not.

    Raises:
        UserError: If a file is damaged.
    """
    file = folder / TOKENIZER_NAME
    if not file.is_file():
        return f"there is no {TOKENIZER_NAME} in {folder}"
    content = read_json(file, REMEDY, most_mib=MOST_MIB)
    settings = read_json_file(folder / TOKENIZER_SETTINGS)
    try:
        ids = ids_of_texts(content, settings)
        kind = str(content["model"].get("type", "BPE"))
    except (AttributeError, KeyError, TypeError, ValueError):
        return f"{file} is of a form that is not known here"
    frame = json.dumps(content.get("post_processor"), sort_keys=True)
    return Tokenizer(
        template=json.dumps(chat_template(folder, settings.get("chat_template"))),
        ids=ids,
        kind=kind,
        adds=(flag(settings, "add_bos_token"), flag(settings, "add_eos_token"), frame),
        special=(special_id("bos_token", settings, ids, config), special_id("eos_token", settings, ids, config)),
    )


def ids_of_texts(content: Any, settings: Mapping[str, Any]) -> dict[str, int]:
    """Id of every text: the model's, and those added in either file."""
    vocab = content["model"]["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {entry[0]: number for number, entry in enumerate(vocab)}
    ids |= {added["content"]: int(added["id"]) for added in content.get("added_tokens") or []}
    return ids | {added["content"]: int(number) for number, added in settings.get("added_tokens_decoder", {}).items()}


def flag(settings: Mapping[str, Any], name: str) -> bool | None:
    """A setting that may be left out."""
    value = settings.get(name)
    return None if value is None else bool(value)


def special_id(name: str, settings: Mapping[str, Any], ids: Mapping[str, int], config: Mapping[str, Any]) -> int | None:
    """The id of a special token: of its text in tokenizer_config.json, else of config.json, of several the first."""
    text = settings.get(name)
    text = text.get("content") if isinstance(text, dict) else text
    if isinstance(text, str) and text in ids:
        return ids[text]
    configured = config.get(f"{name}_id")
    return (
        configured[0]
        if isinstance(configured, list) and configured
        else configured
        if isinstance(configured, int)
        else None
    )


def differing_ids(ours: Mapping[str, int], theirs: Mapping[str, int], *, first: int = 0) -> Iterator[int]:
    """Ids that stand for another text in one of two vocabularies, ascending, as far as both go.

    Args:
        ours: Id by text.
        theirs: Likewise.
        first: The id to begin with.
    """
    our_texts, their_texts = ({number: text for text, number in ids.items()} for ids in (ours, theirs))
    shared = min(max(our_texts, default=-1), max(their_texts, default=-1)) + 1
    return (number for number in range(first, shared) if our_texts.get(number) != their_texts.get(number))


def text_of(ids: Mapping[str, int], wanted: int) -> str:
    """The text of an id, as a message shows it."""
    return next((repr(text[:40]) for text, number in ids.items() if number == wanted), "nothing")

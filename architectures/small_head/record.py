"""The file beside a draft's weights that says which token ids the rows of its output head are. No torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.files.entry_kinds import shown
from architectures.files.reading import read_text
from architectures.files.typed_file import parsed

DRAFT_VOCABULARY_NAME = "draft_vocabulary.json"
CONFIG_KEY = "head_vocab_size"  # of config.json; `draft_vocab_size` would make llama.cpp take it for EAGLE-3
UNUSED_IDS = "never_said"  # of origin: ids kept whatever they count, that what was counted never says
MOST_MIB = 64
REMEDY = "Copy it from where the draft came from, or make the draft again."


@dataclass(frozen=True, kw_only=True)
class DraftVocabulary:
    """Row k of the output head outputs token ids[k].

    Attributes:
        ids: Ascending, so that those below any bound are the first rows.
        vocab_size: Of the target, and rows of the input embedding.
        origin: Where the ids come from: what was counted, how much of it, and which of the ids were never there.
        unknown_id: An id that is not output, whose row of the input embedding was trained to stand for any such id (see
            unknown.py); None where none was.
    """

    ids: tuple[int, ...]
    vocab_size: int
    origin: Mapping[str, Any] = field(default_factory=dict)
    unknown_id: int | None = None

    @property
    def unused_ids(self) -> tuple[int, ...]:
        """Ids that training pushes down wherever it trains, as far as somebody counted; none where nobody did."""
        return tuple(self.origin.get(UNUSED_IDS, ()))

    def to_json(self) -> str:
        """As the file holds it."""
        return json.dumps(asdict(self)) + "\n"


def broken_law(ids: tuple[int, ...], vocab_size: int) -> str | None:
    """What is wrong with the ids of a head, in words; None if nothing."""
    if not ids:
        return "ids must hold at least one id, got none"
    if any(a >= b for a, b in pairwise(ids)):
        return "ids must ascend, each there once"
    if ids[0] < 0 or ids[-1] >= vocab_size:
        return f"ids must be from 0 to {vocab_size - 1}, got {ids[0] if ids[0] < 0 else ids[-1]}"
    return None


def broken_unknown(vocabulary: DraftVocabulary) -> str | None:
    """What is wrong with the id that stands for those which are not output, in words; None if nothing."""
    unknown = vocabulary.unknown_id
    if unknown is None or (0 <= unknown < vocabulary.vocab_size and unknown not in vocabulary.ids):
        return None
    return f"unknown_id must be one of the {vocabulary.vocab_size} ids and not among those said, got {unknown}"


def broken_origin(vocabulary: DraftVocabulary) -> str | None:
    """What is wrong with the ids that the training answers never hold, in words; None if nothing."""
    never = vocabulary.origin.get(UNUSED_IDS, [])
    if isinstance(never, list) and all(type(id_) is int for id_ in never) and set(never) <= set(vocabulary.ids):
        return None
    return f"origin.{UNUSED_IDS} must be a list of some of the ids, got {shown(never)}"


def read_draft_vocabulary(folder: Path) -> DraftVocabulary:
    """The ids of the head of a checkpoint folder, whose config.json has CONFIG_KEY.

    Raises:
        UserError: If the file is missing, damaged, or breaks a law.
    """
    path = folder / DRAFT_VOCABULARY_NAME
    return parse_draft_vocabulary(read_text(path, remedy=REMEDY, most_mib=MOST_MIB), path)


def parse_draft_vocabulary(text: str, path: Path) -> DraftVocabulary:
    """What such a file holds; errors as for `read_draft_vocabulary`."""
    vocabulary = parsed(TypeAdapter(DraftVocabulary), text, f"{path}: not the ids of an output head", REMEDY)
    mistake = (
        broken_law(vocabulary.ids, vocabulary.vocab_size) or broken_unknown(vocabulary) or broken_origin(vocabulary)
    )
    if mistake is not None:
        raise UserError(f"{path}: {mistake}. {REMEDY}")
    return vocabulary


def refuse_small_head(config: Mapping[str, Any], where: str) -> None:
    """Refuse a model whose head outputs some ids alone where all are needed: of a target, which decides and teaches.

    Raises:
        UserError: Naming config.json.
    """
    if CONFIG_KEY in config:
        raise UserError(
            f"{where}: {CONFIG_KEY} is {config[CONFIG_KEY]}: a draft whose output head says so many ids alone, and so "
            "no target. Name the model that it was made for."
        )


def write_draft_vocabulary(vocabulary: DraftVocabulary, folder: Path) -> None:
    """Write the file into a folder that is being made."""
    write_text(vocabulary.to_json(), folder / DRAFT_VOCABULARY_NAME)

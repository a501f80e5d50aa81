"""A draft folder with a small output head, read and checked before anything is made of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from architectures.checkpoints.weights import Weights, open_weights, require_tensors
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Family
from architectures.shapes.shape import Shape, checkpoint_tensors
from architectures.small_head.record import (
    CONFIG_KEY,
    DRAFT_VOCABULARY_NAME,
    DraftVocabulary,
    read_draft_vocabulary,
)
from architectures.targets.target import read_config


@dataclass(frozen=True)
class SmallDraft:
    """What is known of it; weights are read one by one."""

    folder: Path
    config: dict[str, Any]
    shape: Shape
    vocabulary: DraftVocabulary
    weights: Weights

    @property
    def family(self) -> Family:
        return FAMILIES[self.shape.family]


def read_small_draft(folder: Path) -> SmallDraft:
    """A draft whose head outputs some ids alone.

    Raises:
        UserError: If its head outputs all, or a file is missing, damaged or of another draft.
    """
    config = read_config(folder)
    if CONFIG_KEY not in config:
        raise UserError(
            f"{folder}: config.json has no {CONFIG_KEY}, so its output head says every id and engines load the folder "
            "as it is. Give a draft made with architecture.vocabulary."
        )
    shape = Shape.from_config(config, where=str(folder / "config.json"))
    vocabulary = read_draft_vocabulary(folder)
    if (len(vocabulary.ids), vocabulary.vocab_size) != (shape.head_vocab, shape.vocab):
        raise UserError(
            f"{folder}: config.json says {shape.head_vocab} rows of the head for {shape.vocab} ids, "
            f"{DRAFT_VOCABULARY_NAME} {len(vocabulary.ids)} for {vocabulary.vocab_size}. Take both from one draft."
        )
    family = FAMILIES[shape.family]
    weights = open_weights(folder, base_prefix=family.base_prefix)
    require_tensors(weights, checkpoint_tensors(shape), ignored=family.ignored_suffixes)
    return SmallDraft(folder, config, shape, vocabulary, weights)

"""The ids that a recipe asks for, with where they come from. Imports torch only where text is counted."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.vocabulary import (
    COUNTED,
    KEY,
    TOKENIZER,
    UNUSED_IDS,
    Tokens,
    VocabularyConfig,
    asked_size,
    coverage,
    ids_by_count,
    list_file,
    read_list,
    read_tokens,
    require_fitting,
    tokens_of,
)
from distill.recipe.sections.text import TextConfig
from distill.vocabulary.answer_counts import Counts, id_counts_in, pooled
from distill.vocabulary.text_counts import id_counts_in_text


@dataclass(frozen=True)
class Choice:
    """Ids and their origin.

    Attributes:
        ids: Ascending.
        origin: For who opens the draft: "from"; of counts also tokens counted, and the share that the ids cover of
            what was counted and of held-out answers, by domain, and the ids that were not there to be counted.
    """

    ids: tuple[int, ...]
    origin: dict[str, Any]


def chosen(
    wanted: VocabularyConfig, target: Path, vocab_size: int, *, answers: Path, text: TextConfig | None, seed: int
) -> Choice:
    """The output ids of a draft.

    Args:
        wanted: Section architecture.vocabulary.
        target: The target's folder.
        vocab_size: Of the target.
        answers: The folder of answers to count in, <run>/data.
        text: The text to count in; None where the recipe has none.
        seed: Of the text's order.

    Raises:
        UserError: If the list is none of this target's, or the size cannot be had.
    """
    size, tokens = asked_size(wanted, vocab_size), tokens_in(target, vocab_size)
    if wanted.origin not in COUNTED:
        return Choice(listed_ids(wanted, tokens, target), {"from": wanted.origin})
    if wanted.origin == "answers":
        counts = id_counts_in(answers, "train")
    else:
        assert text is not None  # the recipe's own check
        counts = id_counts_in_text(text, target, seed=seed)
    total = pooled(counts)
    ids = ids_by_count(total, tokens, size)
    covered = {"counted": shares(ids, counts)}
    if wanted.origin == "answers":
        covered["held out"] = shares(ids, id_counts_in(answers, "eval"))
    unused_ids = [id_ for id_ in ids if not total[id_]]
    origin = {"from": wanted.origin, "tokens": total.total(), "coverage": covered, UNUSED_IDS: unused_ids}
    return Choice(ids, origin)


def listed_ids(wanted: VocabularyConfig, tokens: Tokens, target: Path) -> tuple[int, ...]:
    """The ids of the list that a recipe names, ascending; errors as for `read_list` and `require_fitting`."""
    ids = read_list(wanted.origin, wanted.size)
    require_fitting(ids, tokens, list_file(wanted.origin), target)
    return tuple(sorted(ids))


def tokens_in(folder: Path, vocab_size: int) -> Tokens:
    """The tokens of a checkpoint folder, whatever files its tokenizer is in.

    Raises:
        UserError: If the files are damaged, or of a kind that says nothing of bytes and special tokens.
    """
    if (folder / TOKENIZER).is_file():
        return read_tokens(folder, vocab_size)
    from eval.models.loading import load_tokenizer

    backend = getattr(load_tokenizer(folder), "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            f"{folder}: its tokenizer is none that a {TOKENIZER} can hold, so that its special tokens and bytes are "
            f"not known. Save it as {TOKENIZER}, or leave {KEY} out."
        )
    return tokens_of(json.loads(backend.to_str()), folder, vocab_size)


def shares(ids: Collection[int], counts: Counts) -> dict[str, float]:
    """The share of each domain's tokens that ids cover, to six digits."""
    return {domain: round(coverage(ids, count), 6) for domain, count in counts.items()}

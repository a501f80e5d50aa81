"""Token ids compared with the rows of the models that will read them, before any model does."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from architectures.errors import UserError
from eval.answers.shards import row_location


def require_known_ids(texts: Iterable[Sequence[int]], folder: Path, name: str, vocab_sizes: Mapping[Path, int]) -> None:
    """Refuse answers with a token id that one of the models has no row for.

    Args:
        texts: The ids of every answer of a name with its prompt, in the order in which they were read.
        folder: Of the files they were read from.
        name: Of these files, such as "train".
        vocab_sizes: Of every model that reads them, by its folder.

    Raises:
        UserError: Naming file and line, the first such id, and the model with the smallest vocabulary.
    """
    smallest = min(vocab_sizes, key=lambda model: vocab_sizes[model])
    for row, ids in enumerate(texts):
        unknown = unknown_id(ids, vocab_sizes[smallest])
        if unknown is not None:
            raise UserError(
                f"{row_location(folder, name, row)}: token id {unknown} is beyond the vocabulary of {smallest}, which "
                f"has vocab_size {vocab_sizes[smallest]}. Answers and models must share their token ids: run the stage "
                "that wrote this file again, or cut the draft out of its target again."
            )


def require_rows_for_row(ids: Sequence[int], model: Path, vocab_size: int, where: str) -> None:
    """Refuse a row of data whose tokens a model has no rows for: its tokenizer has tokens beyond its vocabulary.

    Raises:
        UserError: Naming the row, the first such id, and the model.
    """
    unknown = unknown_id(ids, vocab_size)
    if unknown is not None:
        raise UserError(
            f"{where}: holds token id {unknown}, which is beyond the vocabulary of {model}, vocab_size {vocab_size}. "
            "Mend or delete this row, or use the tokenizer the model was made with."
        )


def unknown_id(ids: Sequence[int], vocab_size: int) -> int | None:
    """The first of some ids that a vocabulary of this size does not have; None where it has them all."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return None
    return next(each for each in ids if not 0 <= each < vocab_size)

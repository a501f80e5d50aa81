"""A list of token ids that somebody hands in: what `architecture.vocabulary.from` may name. No torch.

A JSON list, the ids to keep first at its beginning; or the ids of a draft that is there already, as its folder or its
draft_vocabulary.json. A list is taken as it is: ids that are not in it are not added, special tokens and bytes neither,
since whatever a draft cannot output costs it that token alone. Only where texts end it must be able to output.
"""

from collections import Counter
from pathlib import Path

from pydantic import TypeAdapter

from architectures.draft_vocabulary.tokens import Tokens
from architectures.errors import UserError
from architectures.files.reading import looked_for, read_text
from architectures.files.typed_file import parsed
from architectures.small_head.record import DRAFT_VOCABULARY_NAME, MOST_MIB, parse_draft_vocabulary

KEY = "architecture.vocabulary"
REMEDY = f"Set {KEY}.from to answers, to text, or to the path of a JSON list of token ids."
SHOWN = 5  # ids in a message


def list_file(origin: str) -> Path:
    """The file that a recipe's `from` names, itself or by the folder of the draft it is in.

    Raises:
        UserError: If there is none.
    """
    path = Path(origin).expanduser()
    if path.is_dir():
        if not (path / DRAFT_VOCABULARY_NAME).is_file():
            raise UserError(f"{origin}: is a folder without {DRAFT_VOCABULARY_NAME}, so no draft of some ids. {REMEDY}")
        return path / DRAFT_VOCABULARY_NAME
    if not path.exists():
        raise UserError(f"{origin}: no such file, for {KEY}.from.{looked_for(path)} {REMEDY}")
    return path


def read_list(origin: str, size: int | None) -> tuple[int, ...]:
    """The ids of a list, or so many from its beginning, in its order.

    Args:
        origin: A file, or the folder of a draft.
        size: Ids wanted; None takes all.

    Raises:
        UserError: If it holds no list of different ids, or fewer than are wanted.
    """
    path = list_file(origin)
    text = read_text(path, remedy=REMEDY, most_mib=MOST_MIB)
    if text.lstrip().startswith("{"):
        return ids_of_draft(text, path, size)
    ids = parsed(TypeAdapter(tuple[int, ...]), text, f"{path}: not a JSON list of token ids", REMEDY)
    refuse_no_set(ids, path)
    if size is not None and size > len(ids):
        raise UserError(f"{path}: holds {len(ids)} ids, and {KEY}.size is {size}. Lower it, or leave it out.")
    return ids if size is None else ids[:size]


def ids_of_draft(text: str, path: Path, size: int | None) -> tuple[int, ...]:
    """The ids of a draft_vocabulary.json, which ascend and so have no first ones."""
    ids = parse_draft_vocabulary(text, path).ids
    if size not in (None, len(ids)):
        raise UserError(
            f"{path}: holds {len(ids)} ids in ascending order, of which none comes first, and {KEY}.size is {size}. "
            "Leave size out, or name a list whose first ids are the ones to keep."
        )
    return ids


def refuse_no_set(ids: tuple[int, ...], path: Path) -> None:
    """Raise UserError for a list of nothing, with ids that none has, or with one twice."""
    if not ids:
        raise UserError(f"{path}: holds no ids. {REMEDY}")
    if (least := min(ids)) < 0:
        raise UserError(f"{path}: holds {least}, and token ids are from 0 on. Mend the list.")
    if twice := [number for number, count in Counter(ids).items() if count > 1]:
        raise UserError(f"{path}: holds {shown(twice)} more than once. Name each id once.")


def require_fitting(ids: tuple[int, ...], tokens: Tokens, path: Path, target: Path) -> None:
    """Refuse ids that mean nothing to a target, or with which no text can end.

    Raises:
        UserError: Naming the first of them, and whether it is the list or its cut that lacks the end tokens.
    """
    if unknown := sorted(set(ids) - tokens.ids):
        raise UserError(
            f"{path}: holds {shown(unknown)}, which the tokenizer of {target} does not have. Its ids are from "
            f"{min(tokens.ids)} to {max(tokens.ids)}: name a list that was made with this tokenizer."
        )
    if missing := sorted(tokens.ends - set(ids)):
        raise UserError(
            f"{path}: its first {len(ids)} ids lack {shown(missing)}, at which texts of {target} end: the draft could "
            "end none. Put all end tokens at the beginning of the list."
        )


def shown(ids: list[int]) -> str:
    """The first of some ids."""
    return ", ".join(map(str, ids[:SHOWN])) + (", ..." if len(ids) > SHOWN else "")

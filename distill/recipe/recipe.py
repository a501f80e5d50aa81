"""Every key a recipe may hold, and how a file and a command line become one Recipe. No torch.

Sections are the neighbouring modules; `python -m distill.commands.recipe_reference` writes what is derived from them.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, field_validator

from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.files.reading import read_text
from architectures.files.section import Section
from architectures.settings.kinds import Seed
from architectures.shapes.section import ArchitectureConfig, TargetConfig
from distill.recipe.answer_engine import refuse_engine, require_own_steps
from distill.recipe.held_target import refuse_held
from distill.recipe.sections.data import DataConfig
from distill.recipe.sections.export import ExportConfig
from distill.recipe.sections.teacher import NoTeacher, keeps_states, refuse_uncaptured
from distill.recipe.sections.text import TextConfig, refuse_unknown_references
from distill.recipe.sections.training import DistillConfig
from distill.recipe_reading.environment import from_environment
from distill.recipe_reading.mistakes import mistakes_of, report
from distill.recipe_reading.source import read_source
from distill.recipe_reading.yaml_lines import KeyPath
from eval.config import EvalConfig
from eval.engines.config import GenerateConfig

AnySection = TypeVar("AnySection", bound=Section)

MOST_MIB = 1  # of a recipe; the longest here has 3 KiB
REMEDY = "Name a recipe, which is a YAML file; `widedraft recipes` lists those that come with it."

RESOLVED = "# Resolved by widedraft"  # begins every recipe that a stage wrote


class RecipeError(UserError):
    """Everything that is wrong with a recipe, one line each."""


class Recipe(Section):
    """One complete run."""

    run_name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        title="a name of letters, digits, '.', '_' and '-'",
        examples=["quickstart", "llama2-7b-wide-796m"],
        description="Name of the run; names its folder and its logs.",
    )
    run_dir: str = Field(default="runs/${run_name}", min_length=1, description="Folder of everything the run writes.")
    seed: Seed = 17
    variables: dict[str, Any] = Field(default={}, description="Free values to name in interpolations.")
    target: TargetConfig
    architecture: ArchitectureConfig
    data: DataConfig
    generate: GenerateConfig = GenerateConfig()
    distill: DistillConfig = DistillConfig()
    text: TextConfig | None = Field(
        default=None,
        description="Text in domains, for learned_masks, for distill.train_on text and for a vocabulary from text.",
    )
    eval: EvalConfig = EvalConfig()
    export: ExportConfig = ExportConfig()
    _references: dict[KeyPath, tuple[str, Any]] = PrivateAttr(default_factory=dict)
    _own_steps = field_validator("eval")(require_own_steps)

    def refer(self, texts: Mapping[KeyPath, str]) -> None:
        """Remember the text of values that came from the environment, for as long as they stay what they are."""
        values = self.model_dump(mode="json")
        self._references = {path: (text, value_at(path, values)) for path, text in texts.items()}

    @property
    def references(self) -> dict[KeyPath, tuple[str, Any]]:
        """The text of each value that came from the environment, and that value."""
        return dict(self._references)

    def refer_as(self, other: "Recipe") -> None:
        """Remember what another recipe does, of the values that are the same here."""
        self._references = other.references

    def to_save(self) -> dict[str, Any]:
        """The values as a recipe file holds them; what came from the environment is named and not copied."""
        values = self.model_dump(mode="json")
        saved = _escaped(values)
        for path, (text, value) in self.references.items():
            if value_at(path, values) == value:
                value_at(path[:-1], saved)[path[-1]] = text
        return saved

    @field_validator("run_dir")
    @classmethod
    def _fill_run_name(cls, run_dir: str, info: ValidationInfo) -> str:
        """The default names the run also when no recipe file is read."""
        return run_dir.replace("${run_name}", info.data.get("run_name", ""))

    @field_validator("distill")
    @classmethod
    def _answers_to_count_are_written(cls, distill: DistillConfig, info: ValidationInfo) -> DistillConfig:
        architecture = info.data.get("architecture")
        wanted = None if architecture is None else architecture.vocabulary
        if wanted is not None and wanted.origin == "answers" and not distill.learns_answers:
            got = "text" if distill.train_on == "text" else "live requests"
            raise ValueError(
                f"must have train_on: answers when architecture.vocabulary is from answers, got {got}: held-out "
                "prompts alone are answered then, and none of those is counted. Take the vocabulary from text, or from "
                "a list."
            )
        return distill

    @field_validator("distill")
    @classmethod
    def _requests_are_answered_by_the_target(cls, distill: DistillConfig, info: ValidationInfo) -> DistillConfig:
        data = info.data.get("data")
        if distill.online is not None and data is not None and data.answers == "given":
            raise ValueError(
                "must have mode: offline when data.answers is given, got online: how much of a draft the target keeps "
                "shows on its own answers alone. Set data.answers to written."
            )
        return distill

    @field_validator("distill")
    @classmethod
    def _states_are_kept_here(cls, distill: DistillConfig, info: ValidationInfo) -> DistillConfig:
        generate = info.data.get("generate")
        if generate is not None and not generate.is_local and keeps_states(distill.teacher):
            raise ValueError(
                f"must have teacher.captured_while: reading when generate.engine is {generate.engine}, got answering: "
                "an engine tells tokens and no hidden states. The target then reads its answers once more."
            )
        return distill

    @field_validator("distill")
    @classmethod
    def _states_are_those_of_the_teacher(cls, distill: DistillConfig, info: ValidationInfo) -> DistillConfig:
        target, data = info.data.get("target"), info.data.get("data")
        if target is not None and data is not None:  # else reported already
            words = {"answers": data.answers, "target_dtype": target.dtype, "precision": distill.precision}
            refuse_uncaptured(distill.teacher, **words)
        return distill

    @field_validator("generate")
    @classmethod
    def _an_engine_has_the_targets_weights(cls, generate: GenerateConfig, info: ValidationInfo) -> GenerateConfig:
        refuse_engine(info.data.get("target"), info.data.get("data"), generate.engine)
        return generate

    @field_validator("distill")
    @classmethod
    def _its_target_can_be_so_held(cls, distill: DistillConfig, info: ValidationInfo) -> DistillConfig:
        target, architecture = info.data.get("target"), info.data.get("architecture")
        if target is not None and architecture is not None:  # else reported already
            refuse_held(target, architecture, distill)
        return distill

    @field_validator("distill")
    @classmethod
    def _new_answers_leave_tokens_for_prompts(cls, distill: DistillConfig, info: ValidationInfo) -> DistillConfig:
        data, most = info.data.get("data"), distill.samples.max_new_tokens
        if data is not None and most is not None and most >= data.max_seq_len:
            raise ValueError(
                f"must have samples.max_new_tokens < data.max_seq_len, got {most} and {data.max_seq_len}. The prompt "
                "needs room too."
            )
        return distill

    @field_validator("distill")
    @classmethod
    def _unknown_inputs_need_a_small_head(cls, distill: DistillConfig, info: ValidationInfo) -> DistillConfig:
        architecture = info.data.get("architecture")
        if architecture is None or not distill.unknown_inputs:
            return distill
        if all(getattr(architecture, name) is None for name in ("vocabulary", "source", "plan")):
            raise ValueError(
                f"must leave out unknown_inputs without architecture.vocabulary, got {distill.unknown_inputs}. "
                "A draft that says every id has no input to show as unknown."
            )
        return distill

    @field_validator("distill")
    @classmethod
    def _shards_of_masks_know_their_size(cls, distill: DistillConfig, info: ValidationInfo) -> DistillConfig:
        architecture = info.data.get("architecture")
        if architecture is None or architecture.method != "learned_masks":
            return distill
        if distill.parallelism != "ddp" and architecture.masks.device_train_microbatch_size == "auto":
            raise ValueError(
                f"must have parallelism: ddp when architecture.masks.device_train_microbatch_size is auto, got "
                f"{distill.parallelism}. Give a number."
            )
        return distill

    @field_validator("text")
    @classmethod
    def _text_is_there_for_who_reads_it(cls, text: TextConfig | None, info: ValidationInfo) -> TextConfig | None:
        architecture, distill = info.data.get("architecture"), info.data.get("distill")
        if architecture is None or distill is None:  # reported already
            return text
        masks, student = architecture.method == "learned_masks", distill.train_on == "text"
        counted = architecture.vocabulary is not None and architecture.vocabulary.origin == "text"
        if text is None and masks:
            raise ValueError("must be given when architecture.method is learned_masks: masks are trained on it.")
        if text is None and student:
            raise ValueError("must be given when distill.train_on is text: the student is trained on it.")
        if text is None and counted:
            raise ValueError("must be given when architecture.vocabulary is from text: token ids are counted in it.")
        if text is not None and not masks and not student and not counted:
            raise ValueError(
                f"must be left out when architecture.method is {architecture.method} and distill.train_on is answers: "
                "only learned_masks, train_on text and a vocabulary from text read it."
            )
        if text is not None and student and isinstance(distill.teacher, NoTeacher):
            refuse_unknown_references(text)
        return text


class Scoring(Section):
    """What the command line may set where a target and a draft are scored without a recipe."""

    seed: Seed = 17
    generate: GenerateConfig = GenerateConfig()
    eval: EvalConfig = EvalConfig()
    _own_steps = field_validator("eval")(require_own_steps)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a YAML file, under the command line's key=value words.

    Raises:
        RecipeError: If the file cannot be read; otherwise with every mistake of file and command line, one line each.
    """
    try:
        text = read_text(Path(path), remedy=REMEDY, most_mib=MOST_MIB)
    except UserError as error:
        raise RecipeError(str(error)) from error
    return _load(text, str(path), overrides, Recipe)


def load_scoring(overrides: Sequence[str]) -> Scoring:
    """Scoring settings from the command line's key=value words alone.

    Raises:
        RecipeError: With every mistake, one line each.
    """
    return _load("", "command line", overrides, Scoring)


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe with every default written out; it loads back equal, in the same environment."""
    header = f"{RESOLVED}: every default is written out, every interpolation filled in but of the environment.\n"
    write_text(header + OmegaConf.to_yaml(OmegaConf.create(recipe.to_save())), path)


def _load(text: str, name: str, overrides: Sequence[str], model: type[AnySection]) -> AnySection:
    try:
        source = read_source(text, name, overrides, model)
    except yaml.YAMLError as error:
        raise RecipeError(_syntax_mistake(error, name)) from error
    except UserError as error:
        raise RecipeError(str(error)) from error
    mistakes = source.mistakes
    try:
        loaded = model.model_validate(source.values)
    except ValidationError as error:
        mistakes.extend(mistakes_of(error, source))
    else:
        if not mistakes:
            if isinstance(loaded, Recipe):
                loaded.refer(from_environment(source.written))
            return loaded
    raise RecipeError(report(mistakes, source))


def _syntax_mistake(error: yaml.YAMLError, name: str) -> str:
    mark = getattr(error, "problem_mark", None)
    location = f"{name}:{mark.line + 1}" if mark is not None else name
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{location}: the recipe must be YAML ({problem}). Mend the line or the one above it."


def value_at(path: KeyPath, values: Any) -> Any:
    """The value at a path; None where there is none."""
    for step in path:
        steps: Any = dict(enumerate(values)) if isinstance(values, list) else values
        if not isinstance(steps, dict) or step not in steps:
            return None
        values = steps[step]
    return values


def _escaped(value: Any) -> Any:
    """The value with no ${ that OmegaConf would fill in: a backslash before it, those already there doubled."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value

"""The recipe model, and loading it from a file and the command line. No torch.

Sections are in the neighbouring modules; `python -m distill.recipe.reference` writes the files derived from them.

OmegaConf parses YAML, key=value and ${...}; pydantic checks types and ranges; validate.py checks rules between keys.
All mistakes are reported at once, each with file:line, the dotted key and, for an unknown key, the nearest known one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from architectures.errors import UserError
from architectures.files import read_text, write_text
from architectures.requested_shape import ArchitectureConfig, TargetConfig
from architectures.settings import Flag, Section, Seed, known_keys, nearest_key, schema_of, short
from distill.checkpoints.checkpoint_files import TrustCheckpoints
from distill.recipe.sections import DataConfig, DistillConfig, ExportConfig, TextConfig
from distill.recipe.validate import validate
from eval.config import EvalConfig, GenerateConfig

KeyPath: TypeAlias = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

MAX_MISTAKES = 30  # reported at once
MAX_VALUES = 4000  # of a recipe; values behind an alias count at each place
MISSING = "???"  # OmegaConf's mark of a required value
OVERRIDE_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d{1,9}\])*")
UNREADABLE = object()  # replaces a value whose interpolation failed, which is already reported


class RecipeError(UserError):
    """All mistakes of a recipe, one line each."""


class RuleError(ValueError):
    """Rules between keys that a recipe breaks, each as a key and a problem."""

    def __init__(self, broken: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{key} {problem}" for key, problem in broken))
        self.broken = broken


@dataclass
class Source:
    """Origin of a recipe's values, and the mistakes found so far."""

    name: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    words: dict[KeyPath, str] = field(default_factory=dict)  # command-line arguments, by the key they set
    keys: list[str] = field(default_factory=list)  # that ${...} may name
    mistakes: dict[KeyPath, str] = field(default_factory=dict)

    def add(self, path: KeyPath, problem: str) -> None:
        """Record a mistake; only the first one of a key is reported."""
        self.mistakes.setdefault(path, problem)

    def report(self) -> str:
        """Return one line per mistake: those of the file by line, then those of the command line."""
        located = sorted(self._located(path, problem) for path, problem in self.mistakes.items())
        more = ["There are more errors."] if len(located) > MAX_MISTAKES else []
        return "\n".join([line for _, line in located[:MAX_MISTAKES]] + more)

    def _located(self, path: KeyPath, problem: str) -> tuple[tuple[bool, int], str]:
        """Return the sort key and the line to print. An override replaces everything in the file below its key."""
        above = [path[:length] for length in range(len(path), 0, -1)]
        word = next((self.words[each] for each in above if each in self.words), None)
        line = next((self.lines[each] for each in above if each in self.lines), 0)
        if word is None and path not in self.lines:  # the key itself may come from an override of a key below it
            word = next((given for each, given in self.words.items() if path and each[: len(path)] == path), None)
        where = f"command line: {short(word)}" if word else f"{self.name}:{line}" if line else self.name
        return (bool(word), line), f"{where}: {short(dotted(path)) or 'the recipe'} {problem}"


def load(text: str, name: str, overrides: Sequence[str], model: type[Model]) -> tuple[Model, dict[KeyPath, str]]:
    """Load a YAML text with overrides into a model; also return the interpolation of each value from the environment.

    Raises:
        RecipeError: With every mistake, one line each.
    """
    source = Source(name)
    try:
        config = read_yaml(text, source)
    except (yaml.YAMLError, OmegaConfBaseException, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise RecipeError(f"{where}: not a YAML recipe ({problem}).") from error
    for word in overrides:
        key = word.partition("=")[0]
        if sum(each.partition("=")[0] == key for each in overrides) > 1:
            source.words[word,] = word
            source.add((word,), "is set more than once on the command line. Keep one.")
        else:
            override(config, word, source)
    values = cast("dict[str, Any]", OmegaConf.to_container(config))
    filled = with_defaults(values, model)  # ${...} may refer to defaults
    source.keys = [dotted(path) for path, _ in leaves(filled)]
    references = from_environment(values)
    resolve(OmegaConf.create(filled), values, source)
    loaded = None
    try:
        loaded = model.model_validate(values)
    except ValidationError as error:
        add_validation_errors(error, values, model, source)
    if loaded is None or source.mistakes:
        raise RecipeError(source.report())
    return loaded, references


def read_yaml(text: str, source: Source) -> DictConfig:
    """Parse a YAML mapping, and record the line of every key; raise YAMLError for other YAML."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return OmegaConf.create({})
    if not isinstance(root, yaml.MappingNode):
        raise yaml.MarkedYAMLError(problem="expected `key: value` lines", problem_mark=root.start_mark)
    note_lines(root, (), source, [0])
    return cast("DictConfig", OmegaConf.create(yaml.serialize(root)))


def note_lines(node: yaml.Node, path: KeyPath, source: Source, count: list[int]) -> None:
    """Record the line of every key and item below a node; drop duplicate keys and report them."""
    count[0] += 1
    if count[0] > MAX_VALUES:
        raise yaml.MarkedYAMLError(problem=f"more than {MAX_VALUES:,} values", problem_mark=node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            source.lines[*path, index] = item.start_mark.line + 1
            note_lines(item, (*path, index), source, count)
    elif isinstance(node, yaml.MappingNode):
        kept: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith(":str"):
                raise yaml.MarkedYAMLError(problem="keys must be strings", problem_mark=key.start_mark)
            here, line = (*path, key.value), key.start_mark.line + 1
            if key.value in kept:
                source.add(here, f"is set twice, in lines {source.lines[here]} and {line}. Keep one.")
                source.lines[here] = line
                continue
            kept[key.value], source.lines[here] = (key, value), line
            note_lines(value, here, source, count)
        node.value = list(kept.values())


def override(config: DictConfig, word: str, source: Source) -> None:
    """Apply key=value to a config, or record the mistake."""
    key, equals, text = word.partition("=")
    if not equals or not OVERRIDE_KEY.fullmatch(key):
        source.words[word,] = word
        source.add((word,), "must be key=value, with a key such as distill.optimizer.lr or data.prompts[0].path.")
        return
    path = key_path(key)
    source.words[path] = word
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[index, call-overload]
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        source.add(path, f"cannot be set to {short(repr(text))}: {problem}.")


def with_defaults(values: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return the values with a model's defaults for absent keys, which ${...} may refer to."""
    filled = dict(values)
    for name, info in model.model_fields.items():
        key, kind = info.alias or name, info.annotation
        if key not in filled and not info.is_required():
            default = info.get_default(call_default_factory=True)  # type: ignore[call-arg]
            filled[key] = default.model_dump(mode="json") if isinstance(default, BaseModel) else default
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(filled.get(key, {}), dict):
            filled[key] = with_defaults(filled.get(key, {}), kind)
    return filled


def resolve(config: Any, values: dict[str, Any], source: Source) -> None:
    """Resolve every ${...} in the values, each separately so that every mistake is reported; UNREADABLE if it fails."""
    for path, text in list(leaves(values)):
        if not isinstance(text, str) or ("${" not in text and text != MISSING):
            continue
        parent = value_at(path[:-1], values)
        parent[path[-1]] = UNREADABLE
        if text == MISSING:
            source.add(path, "must be set, got ???.")
            continue
        try:
            value = reduce(getitem, path, config)
            parent[path[-1]] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except (OmegaConfBaseException, RecursionError) as error:
            fact = str(error).splitlines()[0]
            missing = re.search("key '(.+)' not found", fact)
            near = nearest_key(key_path(missing[1]), source.keys) if missing else None
            hint = f" Did you mean ${{{near}}}?" if near else ""
            source.add(path, f"cannot be resolved, got {text!r}: {fact}.{hint}")


def from_environment(written: dict[str, Any]) -> dict[KeyPath, str]:
    """Return the interpolation of every value that depends on the environment, directly or through other keys."""
    texts = {path: text for path, text in leaves(written) if isinstance(text, str) and "${" in text}
    dependent = {path for path, text in texts.items() if "oc.env:" in text}

    def refers(text: str) -> bool:
        named = [key_path(key) for key in re.findall(r"\$\{([\w.\[\]-]+)\}", text)]
        return any(path[: len(key)] == key[: len(path)] for key in named for path in dependent)

    while more := {path for path in texts.keys() - dependent if refers(texts[path])}:
        dependent |= more
    return {path: text for path, text in texts.items() if path in dependent}


def leaves(values: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(values, dict | list):
        for step, value in values.items() if isinstance(values, dict) else enumerate(values):
            yield from leaves(value, (*path, step))
    else:
        yield path, values


def add_validation_errors(error: ValidationError, values: Any, model: type[BaseModel], source: Source) -> None:
    """Record one mistake per wrong key: for a union that of the deepest match, else those of all options."""
    schema = schema_of(model)
    known = known_keys(schema)
    found: dict[KeyPath, list[str]] = {}
    for details in error.errors(include_url=False):
        broken = details.get("ctx", {}).get("error")
        if isinstance(broken, RuleError):
            for key, problem in broken.broken:
                found.setdefault(key_path(key), []).append(problem)
            continue
        path, value = path_and_value(details, values)
        if value is not UNREADABLE:
            found.setdefault(path, []).append(message(details, path, value, known))
    for path, problems in found.items():
        if not any(len(other) > len(path) and other[: len(path)] == path for other in found):
            problem = " or ".join(dict.fromkeys(problems))
            if not problem.endswith((".", "?")):  # a message of pydantic
                problem = f"is invalid: {problem}, got {short(repr(value_at(path, values)))}."
            source.add(path, problem)


def path_and_value(details: ErrorDetails, values: Any) -> tuple[KeyPath, Any]:
    """Return the key of an error and its value, without pydantic's names for the options of a union."""
    path: list[str | int] = []
    value = values
    for step in details["loc"]:
        if (isinstance(value, dict) and step in value) or (isinstance(value, list) and step in range(len(value))):
            value = value[step]  # type: ignore[index, call-overload]
            path.append(step)
        elif isinstance(value, dict) and details["type"] in ("missing", "value_error"):
            path.append(step)
            break
    return tuple(path), value


def message(details: ErrorDetails, path: KeyPath, value: Any, known: Mapping[str, Any]) -> str:
    match details["type"]:
        case "missing":
            return "must be set."
        case "value_error":
            return details["msg"].removeprefix("Value error, ")
        case "extra_forbidden":
            near = nearest_key(path, known)
            return f"is not a key of a recipe.{f' Did you mean {near}?' if near else ''}"
        case "string_pattern_mismatch" if "title" in (node := known.get(re.sub(r"\[\d+\]", "[]", dotted(path)), {})):
            return f"must be {node['title']} such as {' or '.join(node['examples'])}, got {short(repr(value))}."
    return details["msg"]


def value_at(path: KeyPath, values: Any) -> Any:
    """Return the value at a path; None if there is none."""
    for step in path:
        steps: Any = dict(enumerate(values)) if isinstance(values, list) else values
        if not isinstance(steps, dict) or step not in steps:
            return None
        values = steps[step]
    return values


def dotted(path: KeyPath) -> str:
    """Format a path as a dotted key: data.prompts[1].path."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def key_path(key: str) -> KeyPath:
    return tuple(int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", key))


MOST_MIB = 1  # of a recipe; the longest here has 3 KiB
HINT = "Pass a recipe (a YAML file); `widedraft recipes` lists those that ship with widedraft."

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
        text = read_text(Path(path), hint=HINT, most_mib=MOST_MIB)
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
    header = f"{RESOLVED}: with all defaults, and all interpolations resolved except environment variables.\n"
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


def only_overrides(words: tuple[str, ...]) -> tuple[str, ...]:
    if more := [word for word in words if is_recipe(word)]:
        raise ValueError(
            f"must be overrides, as this command takes one recipe, got another recipe: {more[0]}. "
            "Run it once for each; only `widedraft check` takes several."
        )
    return words


def one_recipe(words: tuple[str, ...]) -> tuple[str, ...]:
    return (*words[:1], *only_overrides(words[1:]))


RecipeFile = Annotated[
    Path,
    Field(description="A YAML file; `widedraft recipes` writes those that ship with widedraft."),
    Flag(metavar="RECIPE", is_word=True),
]
Overrides = Annotated[
    tuple[str, ...],
    Field(description="Override of a recipe key, such as target.path; docs/recipes.md lists all."),
    Flag(metavar="key=value", is_word=True),
    AfterValidator(only_overrides),
]
RecipeWords = Annotated[tuple[str, ...], Flag(metavar="RECIPE | key=value", is_word=True), AfterValidator(one_recipe)]
Debug = Annotated[
    bool,
    Field(description="Use a tiny random target and few steps, in <run>-debug: minutes on two cores."),
]


class RecipeSettings(Section):
    """Settings of a command on a recipe."""

    recipe: RecipeFile
    overrides: Overrides = ()
    debug: Debug = False


class TrainSettings(RecipeSettings):
    """Settings of training: of `distill`, and of its processes."""

    trust_checkpoints: TrustCheckpoints = False
    profile: Annotated[Path | None, Flag(metavar="DIR")] = Field(
        default=None, description="Profile a training step: trace and table."
    )


def require_profile_folder(folder: Path) -> None:
    """Make the directory if missing; an older profile in it is replaced, other files stay.

    Raises:
        UserError: If it is a file, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--profile {folder}: not writable ({error.strerror}). Choose another.") from error

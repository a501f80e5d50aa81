"""A recipe file and the command line as plain values: overrides, defaults, interpolation, and where each came from."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    InterpolationToMissingValueError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from pydantic import BaseModel

from architectures.settings.requirements import Schema, section_keys, shown
from distill.recipe_reading.filling import Filling
from distill.recipe_reading.keys import meant, nearest_key, required_keys, schema_of
from distill.recipe_reading.text_rules import unusable_text
from distill.recipe_reading.yaml_lines import (
    MISSING,
    MOST_MISTAKES,
    MOST_NESTED,
    KeyPath,
    Mistake,
    dotted,
    read_yaml,
    read_yaml_value,
)

OVERRIDE_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d{1,9}\])*")


class Broken:
    """Stands for a value that could not be read, so that no check takes it for a value."""


BROKEN = Broken()


@dataclass
class Source:
    """The values of a recipe and where they come from.

    Attributes:
        name: The file, as the user wrote it.
        model: What the values must be.
        values: Plain values, defaults filled in, interpolations resolved.
        written: The same before resolving.
        lines: The line of every key of the file.
        overrides: The command-line word behind each key it set.
        mistakes: What is wrong so far.
    """

    name: str
    model: type[BaseModel]
    values: dict[str, Any] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overrides: dict[KeyPath, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)


def read_source(text: str, name: str, overrides: Sequence[str], model: type[BaseModel]) -> Source:
    """The values of a YAML text under the overrides, with the model's defaults where both are silent.

    Args:
        text: YAML.
        name: Of the file, in messages.
        overrides: Words key=value.
        model: What the values must be.

    Raises:
        yaml.YAMLError: If the text is not YAML.
        UserError: If filling in its `${...}` would take too long.
    """
    read = read_yaml(text)
    source = Source(name, model, lines=read.lines, mistakes=list(read.mistakes))
    config = OmegaConf.create(read.text)
    assert isinstance(config, DictConfig)  # read_yaml lets nothing else pass
    for word in overrides:
        _override(config, word, source)
    schema = schema_of(model)
    source.written = with_defaults(cast("dict[str, Any]", OmegaConf.to_container(config)), schema, schema)
    Filling(source.written).refuse_too_much(name)
    source.values = _resolved(OmegaConf.create(source.written), source.written, (), source)
    return source


def with_defaults(values: Mapping[str, Any], section: Schema, schema: Schema) -> dict[str, Any]:
    """The values with a section's defaults where they are silent; a section that must be given begins empty."""
    filled, required = dict(values), section.get("required", ())
    for name, node in section["properties"].items():
        if name not in filled and ("default" in node or (name in required and section_keys(node, schema))):
            filled[name] = node.get("default", {})
        if isinstance(filled.get(name), dict):
            for inside in meant(node, filled[name], schema):
                filled[name] = with_defaults(filled[name], inside, schema)
    return filled


def _override(config: DictConfig, word: str, source: Source) -> None:
    """Put key=value into config, or note why it cannot be."""
    key, equals, text = word.partition("=")
    path = _key_path(key) if OVERRIDE_KEY.fullmatch(key) else (word,)
    source.overrides[path] = word
    problem = _key_problem(key, equals, path)
    if problem is None:
        try:
            problem = _put(config, key, text)
        except yaml.YAMLError as error:
            fact = str(getattr(error, "problem", None) or error).splitlines()[0]
            problem = f"must have a YAML value, got {shown(text)}: {fact}. Quote it for the shell."
        except (OmegaConfBaseException, ValueError) as error:
            problem = f"must name a place that exists: {str(error).splitlines()[0]}."
    if problem is not None:
        source.mistakes.append(Mistake(path, problem))


def _put(config: DictConfig, key: str, text: str) -> str | None:
    """Put the value that a text says at a key; or say what is wrong with the text."""
    read = read_yaml_value(text)
    if read.mistakes:
        return read.mistakes[0].text
    parsed = cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"])))
    OmegaConf.update(config, key, parsed["value"], merge=False, force_add=True)
    return None


def _key_problem(key: str, equals: str, path: KeyPath) -> str | None:
    if not equals or not OVERRIDE_KEY.fullmatch(key):
        return "must be key=value, with a key such as distill.optimizer.lr or data.prompts[0].path."
    if len(path) > MOST_NESTED:
        return f"must be nested at most {MOST_NESTED} deep, got a key of {len(path)} parts."
    return None


def _key_path(key: str) -> KeyPath:
    return tuple(int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", key))


def _resolved(config: DictConfig | ListConfig, written: Any, path: KeyPath, source: Source) -> Any:
    """The values below a path, every interpolation by itself so that each mistake is seen."""
    if isinstance(written, dict):
        return {key: _value(config, key, value, (*path, key), source) for key, value in written.items()}
    return [_value(config, index, value, (*path, index), source) for index, value in enumerate(written)]


def _value(config: Any, step: str | int, written: Any, path: KeyPath, source: Source) -> Any:
    if isinstance(written, dict | list):
        return _resolved(config[step], written, path, source)
    if not (isinstance(written, str) and ("${" in written or written == MISSING)):
        return written
    if len(source.mistakes) > MOST_MISTAKES:  # each takes a while to explain
        return BROKEN
    try:
        value = config[step]
        value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except (OmegaConfBaseException, RecursionError) as error:
        problem = _reading_problem(error, written, source)
    else:
        problem = unusable_text(value) if isinstance(value, str) else None
        if problem is None:
            return value
    if problem is not None and path not in {mistake.path for mistake in source.mistakes}:
        source.mistakes.append(Mistake(path, problem))
    return BROKEN


def _reading_problem(error: OmegaConfBaseException | RecursionError, written: str, source: Source) -> str | None:
    """Why a value cannot be read; None if the mistake is in the key it points to, which reports it."""
    if isinstance(error, InterpolationToMissingValueError):
        return None
    if isinstance(error, MissingMandatoryValue):
        return f"must be given, got {MISSING}."
    fact = str(error).splitlines()[0]
    if unset := re.search("Environment variable '(.+)' not found", fact):
        fact = f"environment variable {unset[1]} is not set. Set it, as it was when the recipe was written"
    problem = f"must be text whose ${{...}} can be filled in, got {written!r}: {fact}."
    if isinstance(error, InterpolationKeyError) and (missing := re.search("key '(.+)' not found", fact)):
        if missing[1] in required_keys(schema_of(source.model)):
            return None
        near = nearest_key(_key_path(missing[1]), _present_keys(source.written, ()))
        return f"{problem} Did you mean ${{{near}}}?" if near else f"{problem} Free values belong in variables."
    return problem


def _present_keys(values: Any, path: KeyPath) -> Iterator[str]:
    steps = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for step, value in steps:
        yield dotted((*path, step))
        yield from _present_keys(value, (*path, step))

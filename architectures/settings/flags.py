"""A command's settings as flags: a section becomes an argparse parser, and words become a section. No torch.

Why not a library: pydantic-settings 2.16 adds 0.2 s to every start, takes several numbers as `--n 1 --n 2` alone, and
answers a wrong one with a traceback and exit code 1; tyro 1.0 prints pydantic's own words in a frame.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.schema import Schema, options, short

AnySection = TypeVar("AnySection", bound=Section)

METAVARS = {"integer": "N", "number": "X", "string": "TEXT"}


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How a setting stands on a command line, where its type does not say it.

    Attributes:
        metavar: What stands for its value.
        is_word: Given by its place, without a flag; several values are all the words that are left.
        is_repeated: One value behind each flag, which may be given several times; else all values behind one.
        absent: What counts where the flag is left out and the default is no value, in words.
        bare: The value of the flag alone, where it may stand without one.
    """

    metavar: str | None = None
    is_word: bool = False
    is_repeated: bool = False
    absent: str | None = None
    bare: str | None = None


def read_settings(parser: argparse.ArgumentParser, model: type[AnySection], words: Sequence[str]) -> AnySection:
    """The settings that some words give; argparse itself ends the process where they are not flags of the section.

    Raises:
        UserError: If a value is wrong.
    """
    add_flags(parser, model)
    given = {name: value for name, value in vars(parser.parse_intermixed_args(words)).items() if value is not None}
    try:
        return model.model_validate(given, strict=False)
    except ValidationError as error:
        raise UserError("\n".join(sentences(error, given, model))) from error


def add_flags(parser: argparse.ArgumentParser, model: type[Section]) -> None:
    """One flag, or word, for every field."""
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        node = schema["properties"][name]
        options = {**spelling(field, node, schema), "help": help_of(field, options_of(node, schema))}
        if flag_told(field).is_word:
            parser.add_argument(name, **options)
        else:
            parser.add_argument(flag_of(name), default=None, required=field.is_required(), **options)


def spelling(field: FieldInfo, node: Schema, schema: Schema) -> dict[str, Any]:
    """What argparse is told of the values of a field; a list that may be no value at all may be given empty."""
    told, [own, *others] = flag_told(field), options_of(node, schema)
    if own.get("type") == "boolean":
        return {"action": "store_true"}
    if own.get("type") != "array":
        is_free = told.is_word and not field.is_required()
        optional = {"nargs": "?", "const": told.bare} if told.bare is not None else {"nargs": "?"} if is_free else {}
        return {"metavar": told.metavar or metavar([own, *others]), **optional}
    shape = {"metavar": told.metavar or metavar(options_of(own["items"], schema))}
    if told.is_word:
        return {**shape, "nargs": "+" if field.is_required() else "*"}
    several = {"action": "extend", "nargs": "*" if "anyOf" in node else "+"}
    return {**shape, **({"action": "append"} if told.is_repeated else several)}


def options_of(node: Schema, schema: Schema) -> list[Schema]:
    """The schemas of which a value that is given meets one."""
    return [option for option in options(node, schema) if option.get("type") != "null"]


def metavar(options: Sequence[Schema]) -> str:
    """What stands for a value: its choices, or a letter for its type."""
    choices = [
        str(each) for option in options for each in option.get("enum", [option["const"]] if "const" in option else [])
    ]
    return f"{{{','.join(choices)}}}" if choices else METAVARS[options[0]["type"]]


def help_of(field: FieldInfo, options: Sequence[Schema]) -> str:
    """What a setting is, and what counts where it is left out."""
    told, text = flag_told(field), str(field.description or options[0].get("description", "")).removesuffix(".")
    default, is_nothing = told.absent, field.default is None or field.default is False or field.default == ()
    if default is None and not field.is_required() and not is_nothing:
        values = field.default if isinstance(field.default, tuple) else [field.default]
        default = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    often = "; may be given several times" if told.is_repeated else ""
    return f"{text}{often}{'' if default is None else f' (default: {default})'}".replace("%", "%%")


def flag_told(field: FieldInfo) -> Flag:
    """What the section says of how a field stands on a command line."""
    return next((each for each in reversed(field.metadata) if isinstance(each, Flag)), Flag())


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def sentences(error: ValidationError, given: Mapping[str, Any], model: type[Section]) -> list[str]:
    """Each mistake once, with the flag it is about; a list whose values are wrong is no mistake of its own."""
    mistakes = error.errors(include_url=False)
    inner = {details["loc"][:-1] for details in mistakes if details["loc"]}
    return list(
        dict.fromkeys(
            sentence(mistake, given, model) for mistake in mistakes if not mistake["loc"] or mistake["loc"] not in inner
        )
    )


def sentence(details: ErrorDetails, given: Mapping[str, Any], model: type[Section]) -> str:
    """Pydantic's message of one mistake, behind the flag and its value."""
    location, problem = details["loc"], details["msg"].removeprefix("Value error, ")
    if not location:
        return problem
    told = flag_told(model.model_fields[str(location[0])])
    name = str(told.metavar) if told.is_word else flag_of(str(location[0]))
    if details["type"] == "value_error":
        return f"{name} {problem}"
    value = given.get(str(location[0]))
    if isinstance(value, list) and len(location) > 1 and isinstance(location[1], int):
        value = value[location[1]]
    return f"{name}: {problem}, got {short(str(value)) or repr(value)}."

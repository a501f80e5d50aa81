"""The base that every recipe section and the settings of every command share. No torch."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict


class Renamed(NamedTuple):
    """What a setting is called now, and what else is different about it."""

    name: str
    remark: str = ""


class Section(BaseModel):
    """A group of settings: unknown ones are refused, types are strict (1 may stand for 1.0), values never change.

    Numbers are finite. An older name is refused too, and `renamed` says what it became.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        serialize_by_alias=True,  # of keys that are words of Python, as `from`
    )
    renamed: ClassVar[Mapping[str, Renamed]] = {}
    left_out: ClassVar[Mapping[str, str]] = {}  # what others of its kind have, and why this one has not


def without_unsaid(values: Any, unsaid: Mapping[str, Any]) -> Any:
    """Keys as written, without those that hold what they hold where they are left out; anything else as it is."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if key not in unsaid or value not in (None, unsaid[key])}

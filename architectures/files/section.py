"""The base that every recipe section shares. No torch."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of recipe keys: unknown ones are refused, types are strict (1 may stand for 1.0), values never change.

    Numbers are finite.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        serialize_by_alias=True,  # of keys that are words of Python, as `from`
    )


def without_unsaid(values: Any, unsaid: Mapping[str, Any]) -> Any:
    """Keys as written, without those that hold what they hold where they are left out; anything else as it is."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if key not in unsaid or value not in (None, unsaid[key])}

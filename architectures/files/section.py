"""The base that every recipe section and the settings of every command share. No torch."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings: unknown ones are refused, types are strict (1 may stand for 1.0), values never change.

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

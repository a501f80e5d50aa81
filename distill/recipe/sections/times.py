"""Composer's time strings, as far as recipes may use them. No torch, no Composer."""

import re
from typing import Annotated

from pydantic import Field

# Composer's time strings. It also knows sec and iter, left out here: `dur` intervals never come round when training
# is limited in seconds, and an iteration whose length nobody set never ends.
#
# The numbers of digits are bounded so that no value is infinite, and no fraction rounds to nothing.
WHOLE = r"[1-9](?:_?[0-9]){0,14}(?:e[0-9]|e1[0-5])?"

FRACTION = r"(?:0?\.[0-9]{0,9}[1-9][0-9]{0,9}|1(?:\.0{0,9})?)"

FRACTION_OR_ZERO = r"(?:0(?:\.[0-9]{0,18})?|\.[0-9]{1,18})"

Duration = Annotated[
    str,
    Field(pattern=rf"^{WHOLE}(?:ep|ba|sp|tok)$", title="a Composer time", examples=["1ep", "200ba", "1_000_000tok"]),
]

Interval = Annotated[
    str,
    Field(
        pattern=rf"^(?:{WHOLE}(?:ep|ba|sp|tok)|{FRACTION}dur)$",
        title="a Composer time",
        examples=["0.25dur", "200ba", "1ep"],
    ),
]

Warmup = Annotated[
    str,
    Field(
        pattern=rf"^(?:(?:0|{WHOLE})(?:ep|ba|sp|tok)|{FRACTION_OR_ZERO}dur)$",
        title="a Composer time",
        examples=["0.05dur", "100ba", "0ba"],
    ),
]


def split_time(time: str) -> tuple[float, str]:
    """The value and the unit of a time string a recipe accepts: "1_000tok" is (1000.0, "tok")."""
    match = re.fullmatch("(.+)(ep|ba|sp|tok|dur)", time)
    assert match is not None, time
    return float(match[1]), match[2]

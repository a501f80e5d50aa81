"""The widths that may be chosen: channels, neurons and query heads of a layer. No torch."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Annotated

from pydantic import BeforeValidator

from architectures.errors import UserError
from architectures.settings.flags import flag_of
from architectures.shapes.requested_shape import BLOCK, draft_shape, written_size
from architectures.shapes.section import ArchitectureConfig, size
from architectures.shapes.shape import Shape
from distill.choose.shapes.vocabularies import ALL

AXES = {"hidden": "hidden_sizes", "intermediate": "intermediate_sizes", "heads": "heads"}  # settings, by recipe key
WIDTHS = (*AXES, "kv_heads")
PARTS = 8  # of the target's widths, which --widest goes through where no widths are asked for

Widths = Mapping[str, int]  # those that are not the target's, in numbers, by their recipe key


def known_width(word: int | str) -> int | str:
    """A number, a share of the target's as in 0.5x, or ALL."""
    value = int(word) if isinstance(word, str) and word.isdecimal() and len(word) <= 12 else word
    return value if value == ALL else size(value)


WidthSize = Annotated[int | str, BeforeValidator(known_width, json_schema_input_type=str)]


def widths_of(
    architecture: ArchitectureConfig, target: Shape, asked: Mapping[str, Sequence[int | str]]
) -> list[Widths]:
    """Every combination of the widths asked for, from narrow to wide; the recipe's own where none are.

    Key/value heads follow heads, as many as keep the target's ratio, but beside the recipe's own number of heads.

    Args:
        architecture: Section of the recipe.
        target: What drafts are cut out of.
        asked: Values by the name of their axis; an axis that is left out, or has none, has the recipe's own.

    Raises:
        UserError: If a value stands there twice, or exceeds the target's.
    """
    own = own_widths(architecture, target)
    values = {axis: sizes_of(axis, asked.get(axis, ()), own[axis], target) for axis in AXES}
    found: list[Widths] = []
    for sizes in product(*values.values()):
        widths: Widths = dict(zip(AXES, sizes, strict=True))
        found.append(narrower(with_kv_heads(widths, own, target), target))
    return found


def sizes_of(axis: str, asked: Sequence[int | str], own: int, target: Shape) -> list[int]:
    """The numbers that some words of one axis come to, ascending."""
    of_target = getattr(target, axis)
    sizes = [of_target if word == ALL else written_size(axis, word, of_target) for word in asked]
    for number, count in Counter(sizes).items():
        if count > 1:
            raise UserError(f"{flag_of(AXES[axis])}: {number} stands there {count} times. Give each size once.")
        if number > of_target:
            raise UserError(
                f"{flag_of(AXES[axis])} {number}: exceeds the target's {of_target}. A draft is cut from its target."
            )
    return sorted(sizes) or [own]


def own_widths(architecture: ArchitectureConfig, target: Shape) -> Widths:
    """The widths of the recipe's own draft, all of them.

    Raises:
        UserError: If a plan says the shape.
    """
    if architecture.plan is not None:
        raise UserError("architecture.plan says one shape, so there is nothing to choose from. Write sizes instead.")
    shape = draft_shape(target, architecture)
    return {name: getattr(shape, name) for name in WIDTHS}


def with_kv_heads(widths: Widths, own: Widths, target: Shape) -> Widths:
    """Widths with key/value heads; not whole where the heads are no multiple of a group, which the cut refuses."""
    group = target.heads // target.kv_heads
    follow = own["kv_heads"] if widths["heads"] == own["heads"] else max(1, widths["heads"] // group)
    return {**widths, "kv_heads": follow}


def narrower(widths: Widths, target: Shape) -> Widths:
    """Those that are not the target's; key/value heads beside heads, which they would follow otherwise."""
    cut = {name for name, value in widths.items() if value != getattr(target, name)}
    return {name: value for name, value in widths.items() if name in cut or (name == "kv_heads" and "heads" in cut)}


def proportioned_widths(target: Shape) -> list[Widths]:
    """All widths of the target at once, from an eighth to all of them.

    Heads come in whole groups of the target, and channels in multiples of them and of BLOCK, as engines and formats
    demand; so one width may take less than its share.
    """
    found = [proportioned(target, part / PARTS) for part in range(1, PARTS + 1)]
    return [each for place, each in enumerate(found) if each not in found[:place]]


def proportioned(target: Shape, share: float) -> Widths:
    kv_heads = max(1, int(share * target.kv_heads))
    heads = kv_heads * (target.heads // target.kv_heads)
    widths = {
        "hidden": rounded(share * target.hidden, math.lcm(BLOCK, heads)),
        "intermediate": rounded(share * target.intermediate, BLOCK),
        "heads": heads,
        "kv_heads": kv_heads,
    }
    return narrower({name: min(value, getattr(target, name)) for name, value in widths.items()}, target)


def rounded(exact: float, multiple: int) -> int:
    """The largest multiple that is no more, or the smallest there is."""
    return max(multiple, int(exact) // multiple * multiple)


def width_words(widths: Widths, own: Widths, target: Shape) -> Iterator[str]:
    """What the name of a candidate says of its widths: those that are not the recipe's own."""
    for axis in AXES:
        value = widths.get(axis, getattr(target, axis))
        if value != own[axis]:
            yield f"{value}-{axis}"

"""How commands run models' steps (--compile, --capture) and how many tokens drafts propose. Imports torch lazily."""

import sys
from typing import TYPE_CHECKING, Protocol, TypeVar

from architectures.errors import UserError
from architectures.settings.holding import WHOLE, Holding, Placement
from eval.models.execution import How

if TYPE_CHECKING:
    from eval.decoding.kv_cache import Opener
    from eval.decoding.texts import Speculation


class Steps(Protocol):
    """Settings with --compile and --capture."""

    @property
    def compile(self) -> bool: ...

    @property
    def capture(self) -> bool: ...


AnySteps = TypeVar("AnySteps", bound=Steps)


def opener_of(asked: Steps) -> "Opener":
    from eval.decoding.cuda_graphs import new_opener

    if asked.compile:
        print("compiling the models' steps, half a minute or so for each shape ...", file=sys.stderr, flush=True)
    return new_opener(how_asked(asked))


def how_asked(asked: Steps) -> How:
    """How the models are to be run."""
    if asked.compile:
        return "compiled"
    return "captured" if asked.capture else "eager"


def one_way(asked: AnySteps) -> AnySteps:
    """The settings; UserError where steps are to be made in two ways."""
    if asked.compile and asked.capture:
        raise UserError(
            "--compile and --capture both make the steps beforehand, and each step is run in one way only. Leave out "
            "--compile for steps that are made in milliseconds, or --capture for faster ones that take minutes to make."
        )
    return asked


class Held(Steps, Protocol):
    """Settings that say how the target is held too."""

    @property
    def target_placement(self) -> Placement: ...

    @property
    def target_device_memory_gib(self) -> float | None: ...

    @property
    def target_host_memory_gib(self) -> float | None: ...

    @property
    def target_bits(self) -> int | None: ...


AnyHeld = TypeVar("AnyHeld", bound=Held)


def holding_of(asked: Held) -> Holding:
    """How the target is to be held."""
    return Holding(
        asked.target_placement, asked.target_device_memory_gib, asked.target_host_memory_gib, asked.target_bits
    )


def held_well(asked: AnyHeld) -> AnyHeld:
    """The settings; UserError where the target is held in ways that do not go together, or its steps were made so."""
    holding = holding_of(asked)
    if (mistake := holding.mistake) is not None:
        raise UserError(f"--target-placement: {mistake}")
    if holding != WHOLE and how_asked(asked) != "eager":
        raise UserError(
            f"--{'compile' if asked.compile else 'capture'} makes steps of plain weights that stay where they are: "
            "leave it out, or --target-placement and --target-bits."
        )
    return asked


class Drafting(Protocol):
    """Settings of how many tokens a draft proposes."""

    @property
    def adaptive(self) -> bool: ...

    @property
    def draft_p_min(self) -> float: ...


AnyDrafting = TypeVar("AnyDrafting", bound=Drafting)


def speculation_of(asked: Drafting, lookahead: int) -> "Speculation":
    """How a draft is used, with so many tokens a step at most."""
    from eval.decoding.texts import Speculation

    return Speculation(lookahead, adaptive=asked.adaptive, draft_p_min=asked.draft_p_min)


def one_end(asked: AnyDrafting) -> AnyDrafting:
    """The settings; UserError where the number of tokens is to change in two ways that exclude each other."""
    if asked.adaptive and asked.draft_p_min > 0:
        raise UserError("--adaptive and --draft-p-min exclude each other: both change the number of tokens. Keep one.")
    return asked

"""How commands run the steps of models, as --compile and --capture ask. No torch until it runs."""

import sys
from typing import TYPE_CHECKING, Protocol, TypeVar

from architectures.errors import UserError
from eval.models.execution import How

if TYPE_CHECKING:
    from eval.steps.sequencer import Opener


class Steps(Protocol):
    """Settings with --compile and --capture."""

    @property
    def compile(self) -> bool: ...

    @property
    def capture(self) -> bool: ...


AnySteps = TypeVar("AnySteps", bound=Steps)


def opener_of(asked: Steps) -> "Opener":
    from eval.steps.openers import new_opener

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

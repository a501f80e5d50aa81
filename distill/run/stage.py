"""A stage of a run, and the one place that decides whether it is skipped, refused or carried out. No torch.

A stage is finished when its folder holds a manifest; it is current when that manifest records the inputs that the
recipe asks for today.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from architectures.checkpoints.manifest import PACKAGES, flat, package_version
from distill.ranks.same import require_same
from distill.run.artifact import Artifact
from distill.run.run import Run


class Finish(Protocol):
    """Writes the manifest of what a stage made, with what it says of it."""

    def __call__(self, folder: Path | None = None, /, **details: Any) -> None: ...


def nothing(_: Run) -> None:
    """Nothing is required, or left to do."""


def never(_: Run) -> bool:
    """Of an artifact that is whole once it is finished."""
    return False


@dataclass(frozen=True)
class Stage:
    """What a run does at once, and may leave undone if it was done before.

    Attributes:
        artifact: What it makes, of a run.
        inputs: Fingerprints of what it makes that from.
        make: Makes it and finishes it; what there is to say of it, or None where its processes have said so.
        require: Refuses to begin.
        is_incomplete: Whether something is missing in what is finished, and is to be made without the rest.
        changed: What becomes of a finished artifact of other inputs: "remake" over it, "replace" the folder, or
            "refuse" where that would throw away hours.
        afterwards: What is done each time, also where the artifact was up to date.
    """

    artifact: Callable[[Run], Artifact]
    inputs: Callable[[Run], Mapping[str, Any]]
    make: Callable[[Run, Finish], str | None]
    require: Callable[[Run], None] = nothing
    is_incomplete: Callable[[Run], bool] = never
    changed: Literal["remake", "replace", "refuse"] = "remake"
    afterwards: Callable[[Run], None] = nothing


def carry_out(stage: Stage, run: Run) -> None:
    """Make what a stage makes unless it is there.

    Raises:
        UserError: If the stage may not begin, or what is there is of other inputs and is not replaced.
    """
    share = run.share
    share.lead(lambda: may_begin(stage, run))
    artifact, inputs = stage.artifact(run), stage.inputs(run)
    require_same(share, "inputs", {**{key: json.dumps(value) for key, value in flat(inputs).items()}, **versions()})
    if not share.lead(lambda: is_up_to_date(stage, run, artifact, inputs)):
        finish = partial(run.record, artifact, inputs) if share.leads else left_to_the_first
        outcome = stage.make(run, finish)
        if outcome is not None:
            print(f"   {artifact.path}: {outcome}", flush=True)
    share.lead(lambda: stage.afterwards(run))


def may_begin(stage: Stage, run: Run) -> None:
    """Raise UserError unless a stage may."""
    run.begin()
    stage.require(run)


def left_to_the_first(_: Path | None = None, /, **details: Any) -> None:
    """Of several processes the first alone writes the manifest."""


def versions() -> dict[str, str]:
    """Of everything that decides what a stage makes, where several processes make it."""
    return {name: str(package_version(name)) for name in PACKAGES}


def is_up_to_date(stage: Stage, run: Run, artifact: Artifact, inputs: Mapping[str, Any]) -> bool:
    """Whether there is nothing to make; says so, and makes way for what is to be replaced."""
    if not artifact.is_finished:
        return False
    if stage.changed == "refuse":
        artifact.refuse_changed(inputs)
    if stage.is_incomplete(run):
        return False
    is_current = artifact.is_current(inputs)
    if not is_current and stage.changed == "replace":
        shutil.rmtree(artifact.path)
    return is_current

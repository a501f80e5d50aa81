"""What one stage of a run leaves: a folder that is finished and current, or refused. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from architectures.checkpoints.manifest import changed_inputs, difference_words, read_manifest
from architectures.checkpoints.manifest_record import Manifest, StageName
from architectures.errors import UserError
from architectures.settings.recipe_command import command_of


class Made(NamedTuple):
    """How a kind of artifact is made.

    Attributes:
        stage: As its manifest names it.
        command: The word after `widedraft` that makes it.
        carries: What its manifest says of the run beside its inputs: "target", "source", "recipe", "seed".
    """

    stage: StageName
    command: str
    carries: tuple[str, ...]


ARTIFACTS = {  # by the name of their folder in a run, in the order in which a run makes them
    "masks": Made("masks", "masks", ("target", "recipe", "seed")),
    "mask_checkpoints": Made("masks", "masks", ("recipe", "seed")),
    "scores": Made("scores", "prune", ("target", "source")),
    "init": Made("prune", "prune", ("target", "source", "recipe")),
    "data": Made("generate", "generate", ("target", "recipe")),
    "teacher_cache": Made("cache", "cache", ("seed", "target", "recipe")),
    "checkpoints": Made("distill", "distill", ("recipe", "seed")),
    "draft": Made("export", "distill", ("target", "source", "recipe", "seed")),
    "eval": Made("eval", "eval", ("recipe",)),
}


def because(manifest: Mapping[str, Any], changed: Sequence[str], inputs: Mapping[str, str]) -> str:
    """What of the changed inputs differs, behind a colon; nothing where that is not known."""
    words = difference_words(manifest, changed, inputs)
    return f": {words}" if words else ""


@dataclass(frozen=True)
class Artifact:
    """A folder of a run, finished once it holds a manifest."""

    path: Path
    made: Made

    @property
    def manifest(self) -> Manifest | None:
        return read_manifest(self.path)

    @property
    def is_finished(self) -> bool:
        return self.manifest is not None

    @property
    def inputs(self) -> Any:
        """What it was made from, as recorded; None where it is not there."""
        return (self.manifest or {}).get("inputs")

    def is_current(self, inputs: Mapping[str, str]) -> bool:
        """Whether it is finished and made from these inputs; says so, or says what changed."""
        manifest = self.manifest
        if manifest is None:
            return False
        changed = changed_inputs(manifest, inputs)
        told = f"changed: {', '.join(changed)}{because(manifest, changed, inputs)}" if changed else "up to date"
        print(f"   {self.path}: {told}", flush=True)
        return not changed

    def require_finished(self) -> None:
        """Refuse to go on without it."""
        if not self.is_finished:
            raise UserError(
                f"{self.path}: not there yet. Run {command_of(self.made.command)} first, or {command_of('run')}."
            )

    def refuse_changed(self, inputs: Mapping[str, str]) -> None:
        """Raise UserError naming each input in which it differs from these."""
        manifest: Mapping[str, Any] = self.manifest or {"inputs": {}}
        changed = changed_inputs(manifest, inputs)
        if changed:
            why, again = because(manifest, changed, inputs), command_of(self.made.command)
            moved = " A branch on the hub moves: target.revision pins a commit." if "target" in changed else ""
            raise UserError(
                f"{self.path} was made from another {', '.join(changed)} than the recipe now asks for{why}. "
                f"Choose another run_name, or delete {self.path} and what was made from it; {again} makes it anew."
                f"{moved}"
            )

    def require(self, inputs: Mapping[str, str]) -> None:
        """Refuse to go on unless it is there and made from these inputs."""
        self.require_finished()
        self.refuse_changed(inputs)

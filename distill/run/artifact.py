"""What one stage of a run leaves: a folder that is finished and current, or refused. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from architectures.checkpoints.manifest import Manifest, StageName, changed_inputs, inputs_diff, read_manifest
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
    "masks": Made("masks", "prune", ("target", "recipe", "seed")),
    "mask_checkpoints": Made("masks", "prune", ("recipe", "seed")),
    "scores": Made("scores", "prune", ("target", "source")),
    "init": Made("prune", "prune", ("target", "source", "recipe")),
    "data": Made("generate", "generate", ("target", "recipe")),
    "teacher_cache": Made("cache", "cache", ("seed", "target", "recipe")),
    "checkpoints": Made("distill", "distill", ("recipe", "seed")),
    "draft": Made("export", "distill", ("target", "source", "recipe", "seed")),
    "eval": Made("eval", "eval", ("recipe",)),
}


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

    def is_current(self, inputs: Mapping[str, Any]) -> bool:
        """Whether it is finished and made from these inputs; says so, or says what changed."""
        manifest = self.manifest
        if manifest is None:
            return False
        if manifest["inputs"] == inputs:
            print(f"   {self.path}: up to date", flush=True)
            return True
        print(f"   {self.path}: changed\n{inputs_diff(manifest, inputs)}", flush=True)
        return False

    def require_finished(self) -> None:
        """Refuse to go on without it."""
        if not self.is_finished:
            raise UserError(
                f"{self.path}: not there yet. Run {command_of(self.made.command)} first, or {command_of('run')}."
            )

    def refuse_changed(self, inputs: Mapping[str, Any]) -> None:
        """Raise UserError naming each input in which it differs from these."""
        manifest: Manifest = self.manifest or {"inputs": {}}
        changed = changed_inputs(manifest, inputs)
        if changed:
            moved = " A branch on the hub moves: target.revision pins a commit." if "target" in changed else ""
            raise UserError(
                f"{self.path} was made from another {', '.join(changed)} than the recipe names (- recorded, + now):\n"
                f"{inputs_diff(manifest, inputs)}\n"
                f"Choose another run_name, or delete {self.path} and what was made from it; "
                f"{command_of(self.made.command)} makes it again.{moved}"
            )

    def require(self, inputs: Mapping[str, Any]) -> None:
        """Refuse to go on unless it is there and made from these inputs."""
        self.require_finished()
        self.refuse_changed(inputs)

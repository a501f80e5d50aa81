"""A run: the folder of one recipe, its target, and the artifacts that its stages make. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from architectures.checkpoints.manifest import write_manifest
from architectures.shapes.context_length import ContextLength, context_length
from architectures.shapes.shape import Shape
from architectures.sharing import ALONE, Share
from architectures.targets.target import read_config, require_whole_head, resolve_checkpoint
from distill.data.longest_texts import refuse_long_texts
from distill.recipe.recipe import Recipe, save_recipe
from distill.recipe.validate import refuse_unfit
from distill.run.artifact import ARTIFACTS, Artifact
from distill.run.recorded import carried
from eval.targets.layer_memory import refuse_asked_cap

RECIPE_NAME, LOGS_NAME, TARGET_NAME = "recipe.yaml", "logs", "target"


@dataclass(frozen=True)
class Run:
    """One recipe and the folder that everything of it goes to.

    Attributes:
        recipe: With all its values.
        folder: Its run_dir, or where that was moved to.
        share: This process's part of the work, where several work in the run.
    """

    recipe: Recipe
    folder: Path
    share: Share = ALONE

    @classmethod
    def of(cls, recipe: Recipe, share: Share = ALONE) -> "Run":
        """The run of a recipe, where the recipe says."""
        return cls(recipe, Path(recipe.run_dir), share)

    @cached_property
    def target(self) -> Path:
        """The target's folder, fetched or imported if need be.

        Raises:
            UserError: If there is no such target.
        """
        named = self.recipe.target
        return resolve_checkpoint(named.path, revision=named.revision, cache=self.imported_target)

    @property
    def imported_target(self) -> Path:
        """Where a GGUF target becomes a folder."""
        return self.folder / TARGET_NAME

    @property
    def recipe_file(self) -> Path:
        return self.folder / RECIPE_NAME

    @property
    def logs(self) -> Path:
        return self.folder / LOGS_NAME

    @property
    def masks(self) -> Artifact:
        return self.artifact("masks")

    @property
    def mask_checkpoints(self) -> Artifact:
        return self.artifact("mask_checkpoints")

    @property
    def scores(self) -> Artifact:
        """Of layers, heads, neurons and channels; several runs may share them (architecture.scores)."""
        return self.artifact("scores", self.recipe.architecture.scores)

    @property
    def init(self) -> Artifact:
        """The undistilled draft."""
        return self.artifact("init")

    @property
    def data(self) -> Artifact:
        """Prompts and answers."""
        return self.artifact("data")

    @property
    def teacher_cache(self) -> Artifact:
        return self.artifact("teacher_cache")

    @property
    def checkpoints(self) -> Artifact:
        return self.artifact("checkpoints")

    @property
    def draft(self) -> Artifact:
        return self.artifact("draft")

    @property
    def eval(self) -> Artifact:
        """The scorecard and its page."""
        return self.artifact("eval")

    def artifact(self, name: str, elsewhere: str | None = None) -> Artifact:
        """What a stage leaves, by the name of its folder."""
        return Artifact(Path(elsewhere or self.folder / name), ARTIFACTS[name])

    def record(self, artifact: Artifact, inputs: Mapping[str, Any], folder: Path | None = None, **details: Any) -> None:
        """Write the manifest of an artifact: with it, it is finished.

        Args:
            artifact: Of this run.
            inputs: Fingerprints of what it was made from.
            folder: Where it is made, if that is not yet its place.
            details: What its stage says of it.
        """
        of_run = carried(self.recipe, artifact.made.carries)
        write_manifest(folder or artifact.path, stage=artifact.made.stage, inputs=inputs, **details, **of_run)

    def begin(self) -> None:
        """Save the recipe with all its values, and check its target.

        Raises:
            UserError: If there is no such target, it is a draft with a small output head, the recipe asks for what its
                family cannot be given, the recipe's texts may be longer than it was made for, or the memory that the
                recipe leaves it holds no layer of it.
        """
        save_recipe(self.recipe, self.recipe_file)
        require_whole_head(self.target)
        refuse_unfit(self.recipe, read_config(self.target).get("model_type", ""))
        self.refuse_long_texts()
        if self.recipe.target.placement != "whole":
            target = self.recipe.target
            refuse_asked_cap(self.target, shape_of(self.target), target.dtype, target.holding)

    def refuse_long_texts(self, *drafts: Path) -> None:
        """Raise UserError if a text may come to more tokens than the target, or another model, was made for."""
        target = {self.recipe.target.path: length_of(self.target)}
        refuse_long_texts(self.recipe, target, {str(folder): length_of(folder) for folder in drafts})


def shape_of(folder: Path) -> Shape:
    """The shape of a checkpoint folder."""
    return Shape.from_config(read_config(folder), where=str(folder / "config.json"))


def length_of(folder: Path) -> ContextLength | None:
    """How long texts the model of a checkpoint folder was made for."""
    return context_length(read_config(folder), where=str(folder / "config.json"))

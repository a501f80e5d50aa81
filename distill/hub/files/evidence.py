"""acceptance.json, provenance.json and recipe.yaml: what a card's figures were made from, as everybody may read it."""

from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from omegaconf import OmegaConf

from architectures.checkpoints.manifest import package_version
from architectures.files.atomic import write_json, write_text
from distill.hub.files.public import published
from distill.recipe.recipe import RESOLVED
from distill.run.artifact import ARTIFACTS
from distill.run.run import Run
from eval.report import ScoredRun
from eval.scorecard_schema import Scorecard, write_record

ACCEPTANCE_NAME, PROVENANCE_NAME, RECIPE_NAME = "acceptance.json", "provenance.json", "recipe.yaml"
NOT_TOLD = ("mask_checkpoints", "scores")  # what they led to is


def published_run(scored: ScoredRun, names: dict[str, str], *, name: str) -> ScoredRun:
    """A scorecard as everybody may read it; without texts, since prompts may be somebody's own.

    Args:
        scored: Of the run.
        names: What target and draft are called by everybody, by their folders here.
        name: Of the draft.
    """
    shown = Scorecard.model_validate(acceptance_of(scored.card.model_dump(mode="json"), names))
    return replace(scored, path=Path(ACCEPTANCE_NAME), name=name, card=shown, examples=())


def write_evidence(run: Run, scored: ScoredRun | None, folder: Path, names: dict[str, str]) -> None:
    """Write the three files into a folder that is going to be published.

    Args:
        run: That is published.
        scored: Its scorecard as everybody may read it; None where it is published without one.
        folder: The folder.
        names: What the target is called by everybody, by its folder here.
    """
    if scored is not None:
        write_record(scored.card, folder / ACCEPTANCE_NAME)
    write_json(provenance_of(run), folder / PROVENANCE_NAME)
    header = f"{RESOLVED}: of this draft, without secrets and without folders of the machine it was run on.\n"
    values = published(run.recipe.to_save())
    values["target"]["path"] = names.get(run.recipe.target.path, values["target"]["path"])
    write_text(header + OmegaConf.to_yaml(OmegaConf.create(values)), folder / RECIPE_NAME)


def acceptance_of(record: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A scorecard under the names that models have for everybody; every raw count stays.

    The format stays the scorecard's, so `widedraft report` reads the file.
    """
    target, *drafts = (
        {**model, "path": names.get(model["path"], PurePath(model["path"]).name)}
        for model in (record["target"], *record["drafts"])
    )
    kept: dict[str, Any] = published({key: value for key, value in record.items() if key not in ("target", "drafts")})
    return {"format": record["format"], "target": target, "drafts": drafts, **kept}


def provenance_of(run: Run) -> dict[str, Any]:
    """The manifest of every stage of a run: what each was made from, by which code, where and when."""
    manifests = {name: run.artifact(name).manifest for name in ARTIFACTS if name not in NOT_TOLD}
    stages = {name: published(manifest) for name, manifest in manifests.items() if manifest is not None}
    return {"schema": "widedraft.provenance/1", "widedraft": package_version("widedraft"), "stages": stages}

"""Runs of an earlier widedraft: what it recorded with an older kind of fingerprint is compared and adopted, once.

Equal by the older kind, which is all that can be known of what was there, a folder is given today's fingerprints and
every byte counts from then on. What is not equal stays as it is and counts as changed. No torch.
"""

from collections.abc import Mapping
from pathlib import Path

from architectures.checkpoints.manifest import MANIFEST_NAME, adopt_inputs, is_of_older_kind, read_manifest
from architectures.checkpoints.older_fingerprint import say_adopted, today_by_older
from architectures.files.atomic import write_text
from architectures.targets.target import resolve_checkpoint
from distill.recipe.recipe import Recipe
from distill.teacher_cache.record import adopt_journal, is_journal_of_older_kind
from eval.answers.older_answers import adopt_claims

STAGES = ("masks", "mask_checkpoints", "scores", "init", "data", "teacher_cache", "checkpoints", "draft", "eval")
RECORDS = ("*.json", "*.jsonl", "*.md")  # of eval, which name models by their fingerprints


def adopt_older_run(recipe: Recipe, target: Path) -> None:
    """Give every stage of a run that is equal by an older kind of fingerprint those of today, and say so."""
    run = Path(recipe.run_dir)
    older = [folder for folder in stage_folders(recipe) if is_older(folder)]
    if not older:
        return
    same: dict[str, str] = {}
    for folder in checkpoints_of(recipe, target):
        same |= today_by_older(folder)
    for folder in older:
        if folder == run / "eval":
            rename_models(folder, same)
        adoptions = [adopt(folder, same) for adopt in (adopt_claims, adopt_journal, adopt_inputs)]  # the manifest last
        if any(adoptions):
            say_adopted(folder)


def stage_folders(recipe: Recipe) -> list[Path]:
    """Where stages of this run may have left something."""
    run, scores = Path(recipe.run_dir), recipe.architecture.scores
    return [Path(scores) if name == "scores" and scores is not None else run / name for name in STAGES]


def is_older(folder: Path) -> bool:
    """Whether a folder's fingerprints may be of an older kind."""
    manifest = read_manifest(folder)
    return is_journal_of_older_kind(folder) if manifest is None else is_of_older_kind(manifest)


def checkpoints_of(recipe: Recipe, target: Path) -> list[Path]:
    """The checkpoints whose fingerprints a stage of this run may have recorded, as far as they are there."""
    run, architecture, selection = Path(recipe.run_dir), recipe.architecture, recipe.distill.token_selection
    named = [target, run / "init", run / "draft"]
    if architecture.source is not None:
        named.append(resolve_checkpoint(architecture.source, revision=architecture.source_revision))
    if architecture.stages is not None:
        named.append(run / f"stage-{architecture.stages[-2]}" / "draft")
    if selection is not None:
        named.append(Path(selection.reference))
    return [folder for folder in named if folder.is_dir()]


def rename_models(folder: Path, same: Mapping[str, str]) -> None:
    """Put today's fingerprints, whole or by their first twelve digits, in the place of older ones in all records."""
    paths = [path for pattern in RECORDS for path in folder.rglob(pattern) if path.name != MANIFEST_NAME]
    for path in paths:
        text = renamed = path.read_text(encoding="utf-8")
        for older, today in same.items():
            renamed = renamed.replace(older, today).replace(older[:12], today[:12])
        if renamed != text:
            write_text(renamed, path)

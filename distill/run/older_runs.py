"""Runs of an earlier widedraft: what it recorded with an older kind of fingerprint is compared and adopted, once.

Equal by the older kind, which is all that can be known of what was there, a folder is given today's fingerprints and
every byte counts from then on. What is not equal stays as it is and counts as changed. No torch.
"""

from collections.abc import Mapping
from pathlib import Path

from architectures.checkpoints.manifest import MANIFEST_NAME, adopt_inputs, is_of_older_kind, read_manifest
from architectures.checkpoints.older_fingerprint import say_adopted, today_by_older
from architectures.files.atomic import write_text
from distill.run.artifact import ARTIFACTS
from distill.run.progressive import source_folder, stage_run
from distill.run.run import Run
from distill.teacher_cache.record import adopt_journal, is_journal_of_older_kind
from eval.answers.older_answers import adopt_claims

RECORDS = ("*.json", "*.jsonl", "*.md")  # of eval, which name models by their fingerprints


def adopt_older_run(run: Run) -> None:
    """Give every artifact of a run that is equal by an older kind of fingerprint those of today, and say so."""
    older = [folder for folder in artifacts_of(run) if is_older(folder)]
    if not older:
        return
    same: dict[str, str] = {}
    for folder in checkpoints_of(run):
        same |= today_by_older(folder)
    for folder in older:
        if folder == run.eval.path:
            rename_models(folder, same)
        adoptions = [adopt(folder, same) for adopt in (adopt_claims, adopt_journal, adopt_inputs)]  # the manifest last
        if any(adoptions):
            say_adopted(folder)


def artifacts_of(run: Run) -> list[Path]:
    """Where stages of this run may have left something."""
    return [run.scores.path if name == "scores" else run.artifact(name).path for name in ARTIFACTS]


def is_older(folder: Path) -> bool:
    """Whether a folder's fingerprints may be of an older kind."""
    manifest = read_manifest(folder)
    return is_journal_of_older_kind(folder) if manifest is None else is_of_older_kind(manifest)


def checkpoints_of(run: Run) -> list[Path]:
    """The checkpoints whose fingerprints a stage of this run may have recorded, as far as they are there."""
    architecture, selection = run.recipe.architecture, run.recipe.distill.token_selection
    named = [run.target, run.init.path, run.draft.path]
    source = source_folder(run.recipe)
    if source is not None:
        named.append(source)
    if architecture.stages is not None:
        named.append(stage_run(run, architecture.stages[-2]).draft.path)
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

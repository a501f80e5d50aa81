"""A finished run becomes the folder that is published, whole or not at all, and is pushed where that is asked for."""

import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.compatibility import refuse_misleading_name
from architectures.errors import UserError
from architectures.files.atomic import staged_folder, write_text
from architectures.gguf_format import GgufKind
from architectures.settings.recipe_command import command_of
from distill.hub.card.card import Publication, write_card
from distill.hub.card.serving import put_certificates, servings_of
from distill.hub.files.contents import lay_out_forms, lay_out_gguf
from distill.hub.files.early_checks import base_model_of, repository_name
from distill.hub.files.evidence import published_run, write_evidence
from distill.hub.files.terms import Terms, refuse_unlicensed, terms_of
from distill.hub.push.upload import Pushed, push_folder
from distill.recipe.recipe import load_recipe
from distill.run.run import RECIPE_NAME, Run
from eval.engines.certificate import FILE_NAME as CERTIFICATE_NAME
from eval.report import ScoredRun, read_run, write_page
from eval.scorecard_schema import CARD_NAME, Scorecard

Allowed = Literal["unscored", "stale", "misleading-name"]
MARK = "provenance.json"  # by which a folder of an earlier dry run is known


@dataclass(frozen=True)
class Wanted:
    """What is to be published, and where.

    Attributes:
        repo_id: ORG/NAME.
        base_model: The hub id of the target; None takes target.path where that is one.
        licence: The hub's identifier; None takes what is found.
        public: Whether everybody may see it.
        allowed: What is published all the same.
        revision: Branch to push to; None is the main one.
        pull_request: Whether to open one.
        certificates: Folders with certificates of its forms, beside one in the draft's own folder.
        gguf: Kinds of files for llama.cpp.
    """

    repo_id: str
    base_model: str | None = None
    licence: str | None = None
    public: bool = False
    allowed: Collection[Allowed] = ()
    revision: str | None = None
    pull_request: bool = False
    certificates: Sequence[Path] = ()
    gguf: Sequence[GgufKind] = ()

    @property
    def name(self) -> str:
        """Of the repository, without the organisation."""
        return repository_name(self.repo_id)


def push_run(run: Path, wanted: Wanted) -> Pushed:
    """Push a run's draft to the hub.

    Raises:
        UserError: As `lay_out`, or if the hub refuses.
    """
    with tempfile.TemporaryDirectory(prefix="widedraft-push-") as scratch:
        folder = Path(scratch) / "repository"
        lay_out(run, wanted, folder)
        return push_folder(
            folder,
            wanted.repo_id,
            private=not wanted.public,
            revision=wanted.revision,
            pull_request=wanted.pull_request,
            message=f"Draft of run {run.name}, by widedraft",
        )


def dry_run(run: Path, wanted: Wanted, out: Path) -> list[Path]:
    """Write exactly the files that a push would send; returns them, relative to the folder.

    Raises:
        UserError: As `lay_out`, or if the folder holds something else.
    """
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise UserError(f"--dry-run: {out} holds files that no dry run wrote. Choose an empty or a new folder.")
    with staged_folder(out) as folder:
        lay_out(run, wanted, folder)
    return sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())


def lay_out(folder: Path, wanted: Wanted, out: Path) -> None:
    """Write everything that is published of the run in a folder into another.

    Raises:
        UserError: If the run has no finished draft, no scorecard of it, or what must not be published.
    """
    run = finished_run(folder)
    recipe, draft, target = run.recipe, run.draft.path, run.target
    scored = scorecard_of(run, wanted.allowed)
    card = None if scored is None or not isinstance(scored.card, Scorecard) else scored.card
    base_model = base_model_of(recipe.target, wanted.base_model)
    terms = terms_of(target, base_model, wanted.licence)
    refuse_unlicensed(terms, wanted.name, public=wanted.public)
    if "misleading-name" not in wanted.allowed:
        refuse_misleading_name(wanted.repo_id)
    out.mkdir(parents=True, exist_ok=True)
    lookahead = None if card is None else card.main_forecast.best_lookahead
    forms = lay_out_forms(draft, target, out, lookahead=lookahead)
    forms = replace(forms, gguf=lay_out_gguf(out, list(dict.fromkeys(wanted.gguf)), name=wanted.name, draft=draft))
    own = [draft] if (draft / CERTIFICATE_NAME).is_file() else []
    certified = put_certificates(out, forms, target, [*own, *wanted.certificates])
    names = {recipe.target.path: base_model or target.name, str(target): base_model or target.name}
    shown = None if scored is None else published_run(scored, names | {str(draft): wanted.repo_id}, name=wanted.name)
    write_evidence(run, shown, out, names)
    write_terms(terms, out)
    if shown is not None:
        write_page([shown], out / "report.html")
    of = Publication(
        repo_id=wanted.repo_id,
        target=base_model or target.name,
        base_model=base_model,
        recipe=recipe,
        scored=shown,
        counts=(run.data.manifest or {}).get("counts", {}),
        terms=terms,
        serving=servings_of(
            out,
            target,
            forms,
            repo_id=wanted.repo_id,
            base_model=base_model,
            lookahead=lookahead,
        ),
        certified=certified,
    )
    write_card(of, out)


def finished_run(folder: Path) -> Run:
    """The run in a folder, whose training has finished.

    Raises:
        UserError: If there is no such run, or its draft is not finished.
    """
    if not (folder / RECIPE_NAME).is_file():
        raise UserError(f"{folder}: holds no recipe.yaml. Name the folder of a run, as `widedraft run` prints it.")
    run = Run(load_recipe(folder / RECIPE_NAME), folder)
    manifest = run.draft.manifest
    if manifest is None:
        raise UserError(f"{run.draft.path}: not there yet. Run {command_of('run')} first.")
    if not manifest.get("finished"):
        raise UserError(
            f"{run.draft.path}: was exported before its training had finished. Let {command_of('run')} go on."
        )
    return run


def scorecard_of(run: Run, allowed: Collection[Allowed]) -> ScoredRun | None:
    """The scorecard of the run's draft as it is now.

    Raises:
        UserError: If there is none, or it is of another draft or target, unless that is allowed.
    """
    path = run.eval.path / CARD_NAME
    if not path.is_file():
        if "unscored" in allowed:
            return None
        raise UserError(
            f"{run.folder}: has no scorecard, and nobody knows whether its draft makes anything faster. "
            f"Run {command_of('eval')} first, or say --allow unscored."
        )
    run_scored = read_run(path)
    card = run_scored.card
    assert isinstance(card, Scorecard), "a run scores with its target"
    scored = {"draft": card.drafts[-1].fingerprint, "target": card.target.fingerprint}
    today = {"draft": fingerprint_checkpoint(run.draft.path), "target": fingerprint_checkpoint(run.target)}
    changed = [name for name, fingerprint in scored.items() if fingerprint != today[name]]
    if changed and "stale" not in allowed:
        raise UserError(
            f"{path}: is of another {' and '.join(changed)} than is there now. Run {command_of('eval')} again, or "
            "say --allow stale."
        )
    return run_scored


def write_terms(terms: Terms, out: Path) -> None:
    """The target's licence files, and a notice that its licence prescribes where it has none of its own."""
    for path in terms.files:
        shutil.copyfile(path, out / path.name)
    if terms.demand.notice and not any(path.name.startswith("NOTICE") for path in terms.files):
        write_text(terms.demand.notice + "\n", out / "NOTICE")

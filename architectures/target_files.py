"""Files that every draft copies from its target: tokenizer, chat template, generation_config.json. No torch.

Even a draft pruned from another model does: engines read these files from draft or target, and must find the same.

transformers reads three keys from the *draft's* generation_config.json for assisted generation: the number of tokens
to propose per step, its schedule, and the confidence below which to stop. They are set when the draft is scored, and
are not part of a checkpoint's identity: `generation_identity` omits them, so that writing them makes no earlier work
stale.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.families.config_entries import require_generation_config
from architectures.files import read_json_object, write_json

SETTINGS_NAME = "generation_config.json"
MAX_TOKENIZER_MIB = 512  # the largest published tokenizer.json has about 35
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
ASSISTANT_KEYS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
HINT = "Use the file that came with the checkpoint, or delete it to use config.json."

Values = dict[str, Any]


def read_generation_settings(folder: Path) -> Values:
    """Read generation_config.json, or without one, as transformers does, the special ids of config.json."""
    file = folder / SETTINGS_NAME
    if not file.exists():
        config = read_json_object(folder / "config.json", "Pass a Hugging Face checkpoint directory.")
        return {key: config[key] for key in SPECIAL_IDS if key in config}
    values = read_json_object(file, HINT)
    require_generation_config(values, str(file))
    return values


def stop_ids(folder: Path) -> frozenset[int]:
    """Return the ids at which a checkpoint's `generate` stops; empty if it never does."""
    eos = read_generation_settings(folder).get("eos_token_id")
    return frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])


def generation_identity(folder: Path) -> Values | None:
    """Return the generation settings that belong to a checkpoint's identity: all but ASSISTANT_KEYS.

    None if there is neither generation_config.json nor config.json: such a directory is not a checkpoint.
    """
    if not any((folder / name).exists() for name in (SETTINGS_NAME, "config.json")):
        return None
    return {key: value for key, value in read_generation_settings(folder).items() if key not in ASSISTANT_KEYS}


def write_assistant_settings(draft: Path, *, num_speculative_tokens: int) -> bool:
    """Set the tokens per step of transformers' `generate(assistant_model=draft)`; return True if the file changed.

    The confidence threshold is 0: transformers' default stops at the first token with a draft probability below 0.4.
    """
    before = read_generation_settings(draft)
    after = {**before, **dict(zip(ASSISTANT_KEYS, (num_speculative_tokens, "constant", 0.0), strict=True))}
    if after == before:
        return False
    write_json(after, draft / SETTINGS_NAME)
    return True


TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # any of them is a tokenizer
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
CARRIED_FILES = (
    *TOKENIZERS,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    *TEMPLATES,
    SETTINGS_NAME,
)


def require_tokenizer(target: Path) -> None:
    """Raise UserError if there is no tokenizer, which a draft shares with its target."""
    if not any((target / name).is_file() for name in TOKENIZERS):
        raise UserError(f"{target}: contains no tokenizer ({', '.join(TOKENIZERS)}). Copy the target's.")


def carry_files(target: Path, folder: Path, *, names: Sequence[str] = CARRIED_FILES) -> None:
    """Copy tokenizer, chat template and generation settings into a new directory, byte for byte."""
    read_generation_settings(target)
    for name in names:
        if (target / name).is_dir():
            shutil.copytree(target / name, folder / name)
        elif (target / name).is_file():
            shutil.copyfile(target / name, folder / name)


def with_special_ids(config: Mapping[str, Any], of: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the special ids of another one; those absent there are removed."""
    ids = {key: of[key] for key in SPECIAL_IDS if key in of}
    return {key: ids.get(key, value) for key, value in config.items() if key not in SPECIAL_IDS or key in ids} | ids


def bytes_below(path: Path) -> dict[str, bytes]:
    """Return the content of every file of a directory, or of a file; empty if it does not exist."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}

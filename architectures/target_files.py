"""Files that every draft takes over from its target: tokenizer, chat template, generation_config.json.

Also where it is cut out of another model than its target: engines take these from either, and must find the same.
No torch.

transformers reads three of its keys from the *draft* when it decodes with one: how many tokens to propose a round, by
which schedule, and below which confidence to stop. They are known when the draft is scored, and are no part of what a
checkpoint is: `generation_identity` leaves them out, so that writing them makes no earlier work stale.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.families.config_entries import require_generation_config
from architectures.files import read_json_object, write_json

SETTINGS_NAME = "generation_config.json"
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
ASSISTANT_KEYS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
REMEDY = "Take the file the checkpoint came with, or delete it: config.json is read then."

Values = dict[str, Any]


def read_generation_settings(folder: Path) -> Values:
    """What generation_config.json says; without one, the special ids of config.json, which transformers takes then.

    Raises:
        UserError: If it is no JSON object, or an entry is one that no model has.
    """
    file = folder / SETTINGS_NAME
    if not file.exists():
        config = read_json_object(folder / "config.json", "Give the folder of a Hugging Face checkpoint.")
        return {key: config[key] for key in SPECIAL_IDS if key in config}
    values = read_json_object(file, REMEDY)
    require_generation_config(values, str(file))
    return values


def stop_ids(folder: Path) -> frozenset[int]:
    """The ids at which a checkpoint's `generate` stops; empty when it never does."""
    eos = read_generation_settings(folder).get("eos_token_id")
    return frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])


def generation_identity(folder: Path) -> Values:
    """The part of a checkpoint's generation settings that belongs to its identity: all but the assistant's keys.

    Nothing where there is neither generation_config.json nor config.json: such a folder is no checkpoint.
    """
    if not any((folder / name).exists() for name in (SETTINGS_NAME, "config.json")):
        return {}
    return {key: value for key, value in read_generation_settings(folder).items() if key not in ASSISTANT_KEYS}


def write_assistant_settings(draft: Path, *, lookahead: int) -> bool:
    """Have transformers' `generate(assistant_model=draft)` propose so many tokens each round; everything else stays.

    The confidence threshold is 0: transformers' default would stop at the first token of which the draft is less than
    0.4 sure.

    Args:
        draft: Its folder.
        lookahead: Tokens a round at most.

    Returns:
        Whether the file changed.
    """
    before = read_generation_settings(draft)
    after = {**before, **dict(zip(ASSISTANT_KEYS, (lookahead, "constant", 0.0), strict=True))}
    if after == before:
        return False
    write_json(after, draft / SETTINGS_NAME)
    return True


TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # any of them makes a tokenizer
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
    """A draft shares its target's tokenizer, so there must be one."""
    if not any((target / name).is_file() for name in TOKENIZERS):
        raise UserError(f"{target}: holds no tokenizer ({', '.join(TOKENIZERS)}). Save the target's tokenizer there.")


def carry_files(target: Path, folder: Path, *, names: Sequence[str] = CARRIED_FILES) -> None:
    """Copy tokenizer, chat template and generation settings into a new folder, byte for byte.

    Raises:
        UserError: If the generation settings are none.
    """
    read_generation_settings(target)
    for name in names:
        if (target / name).is_dir():
            shutil.copytree(target / name, folder / name)
        elif (target / name).is_file():
            shutil.copyfile(target / name, folder / name)


def with_special_ids(config: Mapping[str, Any], of: Mapping[str, Any]) -> dict[str, Any]:
    """A config whose special ids are those of another one, absent where they are absent there."""
    ids = {key: of[key] for key in SPECIAL_IDS if key in of}
    return {key: ids.get(key, value) for key, value in config.items() if key not in SPECIAL_IDS or key in ids} | ids


def bytes_below(path: Path) -> dict[str, bytes]:
    """Every file of a folder, or the file; nothing where there is neither."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}

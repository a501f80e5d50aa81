"""What every draft has from its target as it is: tokenizer files, chat template, generation settings, special ids.

Also where it is cut out of another model than its target: engines take these from either, and must find the same.
No torch.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from architectures.checkpoints.generation_settings import SETTINGS_NAME, SPECIAL_IDS, read_generation_settings
from architectures.errors import UserError

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

"""generation_config.json: where answers end and how a draft is used. A draft's is its target's. No torch.

transformers reads three of its keys from the *draft* when it decodes with one: how many tokens to propose a round, by
which schedule, and below which confidence to stop. They are known when the draft is scored, and are no part of what a
checkpoint is: `generation_identity` leaves them out, so that writing them makes no earlier work stale.
"""

from pathlib import Path
from typing import Any

from architectures.families.config_entries import require_generation_config
from architectures.files.atomic import write_json
from architectures.files.reading import read_json_object

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

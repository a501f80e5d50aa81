"""Extract the text model of a multimodal checkpoint into a directory of its own, tensor by tensor.

Engines serve the whole model; for text prompts its logits are those of the extracted one.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from architectures.checkpoint import open_weights, require_replaceable, write_weights
from architectures.errors import UserError
from architectures.families import SAME_FOR_TEXT
from architectures.files import read_json_object, staged_folder, write_json
from architectures.manifest import MANIFEST_NAME, fingerprint_checkpoint, write_manifest
from architectures.shapes import rope_for_transformers_4
from architectures.target_files import SPECIAL_IDS, carry_files

STAGE = "import-text"
HINT = "Download the checkpoint again."
PREFIX = re.compile(r"^(?:model\.)?language_model\.(?:model\.(?=\w)|(?=lm_head\.))?")
IMAGE_ROPE = ("mrope_section", "mrope_interleaved", "type")  # equal positions on all axes rotate as one


def import_text_model(folder: Path, out: Path) -> None:
    """Write the text model of a multimodal checkpoint, with its tokenizer; an earlier import in `out` is replaced.

    Raises:
        UserError: If the checkpoint is quantised or has no text model, or `out` contains something else.
    """
    whole = read_json_object(folder / "config.json", HINT)
    if whole.get("quantization_config") is not None:
        raise UserError(
            f"{folder / 'config.json'}: the checkpoint is quantised "
            f"(quant_method {whole['quantization_config'].get('quant_method')!r}). Use its unquantised original."
        )
    config, weights = text_config(folder), open_weights(folder)
    names = text_names(weights.info)
    if not names:
        raise UserError(f"{folder}: no tensor belongs to a text model. Pass a model that generates text.")
    require_replaceable(out, MANIFEST_NAME, reading=folder, stage=STAGE)
    with staged_folder(out) as staged:
        layout = {new: weights.info[old] for new, old in names.items()}
        write_weights(layout, lambda name: weights.read(names[name]), staged)
        write_json(config, staged / "config.json")
        carry_files(folder, staged)
        write_manifest(staged, stage=STAGE, inputs={"model": fingerprint_checkpoint(folder)}, model=str(folder))


def text_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a multimodal checkpoint's text model, with transformers' defaults filled in."""
    from transformers import AutoConfig  # takes a second, and only multimodal checkpoints need it

    whole = AutoConfig.from_pretrained(folder)
    part = whole.get_text_config(decoder=True)
    entries = part.to_dict()
    entries["model_type"] = SAME_FOR_TEXT.get(part.model_type, part.model_type)
    entries["tie_word_embeddings"] = bool(whole.tie_word_embeddings)
    entries |= {key: getattr(whole, key) for key in SPECIAL_IDS if getattr(whole, key, None) is not None}
    rope = entries.get("rope_parameters")
    if isinstance(rope, Mapping) and "mrope_section" in rope:
        plain = {key: value for key, value in rope.items() if key not in IMAGE_ROPE}
        entries["rope_parameters"] = plain | ({"rope_type": "default"} if plain.get("rope_type") == "mrope" else {})
    entries.pop("architectures", None)
    stored = read_json_object(folder / "config.json", HINT)
    entries |= {key: stored[key] for key in ("dtype", "torch_dtype", "quantization_config") if key in stored}
    return entries | rope_for_transformers_4(entries)


def text_names(stored: Iterable[str]) -> dict[str, str]:
    """Return name in the text model -> name in the multimodal checkpoint, for the tensors of the text model."""
    stored = [*stored]
    is_nested = any(PREFIX.match(name) for name in stored)
    names: dict[str, str] = {}
    for name in stored:
        if (match := PREFIX.match(name)) is not None:
            rest = name[match.end() :]
            names[rest if rest.startswith("lm_head.") else f"model.{rest}"] = name
        elif name.startswith("lm_head.") or (not is_nested and name.startswith("model.")):
            names[name] = name
    return names

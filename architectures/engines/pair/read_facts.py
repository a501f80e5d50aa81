"""The facts of a draft or a target, read from a folder, a hub id or our own table; no weights, no torch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from architectures.checkpoints.generation_settings import SETTINGS_NAME, read_generation_settings
from architectures.checkpoints.manifest import read_manifest
from architectures.engines.pair.facts import Model
from architectures.engines.pair.tokenizer_files import read_tokenizer
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.config_entries import TEXT_PARTS
from architectures.shapes.context_length import context_length
from architectures.shapes.shape import Shape
from architectures.small_head.record import CONFIG_KEY
from architectures.targets.target import cached_config, config_at_hand, is_gguf, local_path

OTHER_PARTS = ("vision_config", "audio_config", "speech_config")
FORMS = ("whole", "own-tokenizer")


def read_model(path: str, revision: str = "main") -> Model:
    """The facts of a checkpoint: of its files where they are on this machine, else of its config alone.

    Args:
        path: A folder, a hub id, or a .gguf file.
        revision: Branch, tag or commit of a hub id.

    Raises:
        UserError: If there is no such checkpoint, the hub cannot be reached, or a file is damaged.
    """
    local = local_path(path, revision)
    config, own = config_at_hand(path, revision)
    model = model_of(config, name=path, path=path if local is None else str(local.absolute()))
    folder = local if local is not None else cached_config(path, revision) if own else None
    if folder is None:
        return model
    if is_gguf(folder):
        return replace(model, without_tokenizer="that of a GGUF file is not read")
    return with_files(model, folder, config)


def read_draft(path: str) -> Model:
    """The facts of a draft.

    Raises:
        UserError: As `read_model`, and for a GGUF file.
    """
    if is_gguf(path):
        raise UserError(
            f"{path}: is a GGUF file, which says less of a draft than the Hugging Face folder it was made from. Give "
            "that folder."
        )
    return read_model(path)


def model_of(config: Mapping[str, Any], *, name: str, path: str) -> Model:
    """What a config says; nothing that stands in other files.

    Raises:
        UserError: If an entry contradicts another.
    """
    part = next((config[key] for key in TEXT_PARTS if isinstance(config.get(key), dict)), config)
    whole = part is config
    shape = shape_of(config, name) if whole else None
    return Model(
        name=name,
        path=path,
        model_type=str(part.get("model_type", config.get("model_type"))),
        vocab_size=shape.vocab if shape is not None else part.get("vocab_size", config.get("vocab_size")),
        small_head=part.get(CONFIG_KEY) or 0,
        shape=shape,
        explicit_head_dim=part.get("head_dim") is not None,
        context=context_length(part, where=name),
        dtype=config.get("dtype") or config.get("torch_dtype") or part.get("dtype"),
        quantisation=quantisation_of(config),
        custom_code="auto_map" in config,
        multimodal=any(isinstance(config.get(key), dict) for key in OTHER_PARTS),
        eagle_entry="draft_vocab_size" in config,
        rotary_layers=rotary_layers(config, shape),
        window=part.get("sliding_window") if part.get("use_sliding_window", True) else None,
    )


def shape_of(config: Mapping[str, Any], where: str) -> Shape | None:
    """The shape of a checkpoint of a known family, quantised or not; None of any other model."""
    family = FAMILIES.get(config.get("model_type", ""))
    if family is None or any(config.get(key, value) != value for key, value in family.fixed_entries.items()):
        return None
    return Shape.from_config({**config, "quantization_config": None}, where=where)


def rotary_layers(config: Mapping[str, Any], shape: Shape | None) -> tuple[int, ...] | None:
    """Which layers have rotary positions, where some may have none."""
    layers = None if shape is None else FAMILIES[shape.family].rotary_layers(config, shape.layers)
    return None if layers is None else tuple(layers)


def quantisation_of(config: Mapping[str, Any]) -> str | None:
    """The method by which a checkpoint is quantised; None if it is not."""
    settings = config.get("quantization_config")
    return None if settings is None else str(settings.get("quant_method", "unnamed"))


def with_files(model: Model, folder: Path, config: Mapping[str, Any]) -> Model:
    """The same with what stands beside config.json."""
    tokenizer = read_tokenizer(folder, config)
    known = None if isinstance(tokenizer, str) else tokenizer
    form = (read_manifest(folder) or {}).get("form")
    return replace(
        model,
        tokenizer=known,
        without_tokenizer=tokenizer if isinstance(tokenizer, str) else "",
        settings=read_generation_settings(folder) if (folder / SETTINGS_NAME).is_file() else {},
        form=form if form in FORMS else None,
    )

"""What manifests say of a recipe: its target, what the draft is cut out of, its hash, its seed. No torch."""

import json
from collections.abc import Iterable
from typing import Any

from architectures.checkpoints.fingerprint import fingerprint_value
from architectures.checkpoints.fingerprint_parts import flat
from architectures.checkpoints.manifest_record import ModelReference, Packed, Source
from architectures.shapes.section import ArchitectureConfig, TargetConfig
from distill.formulas.losses import recorded_loss
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import UNSAID
from distill.recipe_reading.yaml_lines import dotted

OF_AN_ENCODER = ("encoder_layers", "encoder_method")  # recorded where one is cut, so that other recipes stay the same
WHERE_IT_IS = ("placement", "device_memory_gib", "host_memory_gib")  # of the target: as the device
HOW = (  # as the device, they say how the same is computed, or kept
    ("data", "answer_steps"),
    ("distill", "pad_to_multiple"),
    ("distill", "checkpoints"),
    ("distill", "shard_degree"),
    ("distill", "activation_checkpointing"),
)
OF_REQUESTS = ("mode", "online")  # recorded where requests are learned


def carried(recipe: Recipe, names: Iterable[str]) -> dict[str, Any]:
    """What a manifest says of a recipe under these names; "source" is left out where that is the target."""
    of_recipe = {
        "target": target_record(recipe.target),
        "recipe": recipe_hash(recipe),
        "seed": recipe.seed,
        **source_record(recipe.architecture),
    }
    return {name: of_recipe[name] for name in names if name in of_recipe}


def target_record(target: TargetConfig) -> ModelReference:
    """The target as a manifest names it; in fewer bits it is another model."""
    packed: Packed = {} if target.bits is None else {"bits": target.bits}
    return {"path": target.path, "revision": target.revision, **packed}


def source_record(wanted: ArchitectureConfig) -> Source:
    """What the draft is cut out of, as a manifest names it, under "source"; nothing where that is the target."""
    return {} if wanted.source is None else {"source": {"path": wanted.source, "revision": wanted.source_revision}}


def recipe_hash(recipe: Recipe) -> str:
    """sha256 of the resolved recipe."""
    return fingerprint_value(recorded_values(recipe))


def told_apart(recipe: Recipe) -> dict[str, str]:
    """Every key of a recipe with its value, for processes that must have the same; secrets as fingerprints."""
    values = flat(recipe.model_dump(mode="json"), "")
    secret = tuple(dotted(path) for path in recipe.references)
    return {
        key: fingerprint_value(value) if key.startswith(secret) else json.dumps(value, ensure_ascii=False)
        for key, value in ((key.removeprefix("."), value) for key, value in values.items())
    }


def recorded_values(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe with the names and keys of sections at first, so that what was recorded holds."""
    values = recipe.model_dump(mode="json")
    values["distill"]["teacher"] = {**UNSAID, **values["distill"]["teacher"]}
    values["distill"]["loss"] = recorded_loss(recipe.distill.loss)
    if not recipe.distill.samples.writes:
        del values["distill"]["samples"]
    values["eval"] = recipe.eval.recorded()
    for section, name in HOW:
        del values[section][name]
    del values["generate"]  # likewise: whoever decodes, it is the same model
    for key in (*WHERE_IT_IS, *([] if recipe.target.bits else ["bits"])):
        del values["target"][key]
    if recipe.distill.online is None:
        for key in OF_REQUESTS:
            del values["distill"][key]
    if recipe.architecture.encoder_layers is None:
        for key in OF_AN_ENCODER:
            del values["architecture"][key]
    return values

"""What manifests say of a recipe: its target, what the draft is cut out of, its hash, its seed. No torch."""

import json
from collections.abc import Iterable
from typing import Any

from architectures.checkpoints.fingerprint import fingerprint_value
from architectures.checkpoints.manifest import flat
from architectures.shapes.section import ArchitectureConfig, TargetConfig
from distill.recipe.loader import dotted
from distill.recipe.recipe import Recipe

HOW = (  # as the device, they say how the same is computed, or kept
    ("target", "placement"),
    ("target", "device_memory_gib"),
    ("distill", "checkpoints"),
    ("distill", "shard_degree"),
    ("distill", "activation_checkpointing"),
)


def carried(recipe: Recipe, names: Iterable[str]) -> dict[str, Any]:
    """What a manifest says of a recipe under these names; "source" is left out where that is the target."""
    of_recipe = {
        "target": target_record(recipe.target),
        "recipe": recipe_hash(recipe),
        "seed": recipe.seed,
        **source_record(recipe.architecture),
    }
    return {name: of_recipe[name] for name in names if name in of_recipe}


def target_record(target: TargetConfig) -> dict[str, Any]:
    """The target as a manifest names it; in fewer bits it is another model."""
    packed = {} if target.bits is None else {"bits": target.bits}
    return {"path": target.path, "revision": target.revision, **packed}


def source_record(wanted: ArchitectureConfig) -> dict[str, Any]:
    """What the draft is cut out of, as a manifest names it, under "source"; nothing where that is the target."""
    source = wanted.source_at
    return {} if source is None else {"source": {"path": source[0], "revision": source[1]}}


def recipe_hash(recipe: Recipe) -> str:
    """sha256 of the resolved recipe."""
    return fingerprint_value(recorded_values(recipe))


def told_apart(recipe: Recipe) -> dict[str, str]:
    """Every key of a recipe with its value, for processes that must have the same; secrets as fingerprints."""
    values = flat(recipe.model_dump(mode="json"))
    secret = tuple(dotted(path) for path in recipe.references)
    return {
        key: fingerprint_value(value) if key.startswith(secret) else json.dumps(value, ensure_ascii=False)
        for key, value in values.items()
    }


def recorded_values(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe without keys that only say how and where the same is computed."""
    values = recipe.model_dump(mode="json")
    for section, name in HOW:
        del values[section][name]
    del values["generate"]  # whichever engine decodes, it is the same model
    if recipe.distill.online is not None:  # what is compared behind a training does not change it
        del values["distill"]["online"]["baselines"]
    return values

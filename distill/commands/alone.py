"""Why a command that several processes could share out is one process's work, as it was asked for. No torch."""

from pathlib import Path
from typing import Any


def why_alone(settings: Any) -> str | None:
    """In words, for who has several GPUs and named no number of processes; None where each GPU gets one.

    Raises:
        UserError: If the recipe that the settings name is wrong.
    """
    if placement_asked(settings) != "spread":
        return None
    return "target.placement is spread: one process has all GPUs of this machine."


def placement_asked(settings: Any) -> str:
    """Where the target's weights are to be, by the command line or by the recipe that it names."""
    from distill.recipe.recipe import load_recipe

    if getattr(settings, "is_without_recipe", False):
        return settings.holding.placement
    path, overrides = (settings.recipe, settings.overrides) if hasattr(settings, "recipe") else of_eval(settings.words)
    return load_recipe(path, overrides).target.placement


def of_eval(words: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """The recipe that is the first of some words, and its values."""
    return Path(words[0]), words[1:]

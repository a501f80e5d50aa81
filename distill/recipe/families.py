"""What a recipe asks for that not every target's family can be given. No torch."""

from collections.abc import Callable, Mapping

from architectures.families import FAMILIES
from architectures.families.family import Feature
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import is_sharded

Asks = Callable[[Recipe], bool]
# feature -> the key that asks for it, and whether a recipe does
ASKED: Mapping[Feature, tuple[str, Asks]] = {
    "merge": ("architecture.method=merge", lambda recipe: recipe.architecture.method == "merge"),
    "learned_masks": (
        "architecture.method=learned_masks",
        lambda recipe: recipe.architecture.method == "learned_masks",
    ),
    "rescale": ("architecture.rescale", lambda recipe: recipe.architecture.rescale),
    "vocabulary": ("architecture.vocabulary", lambda recipe: recipe.architecture.vocabulary is not None),
    "stages": ("architecture.stages", lambda recipe: recipe.architecture.stages is not None),
    "packing": ("distill.packing", lambda recipe: recipe.distill.packing),
    "text": ("distill.train_on=text", lambda recipe: recipe.distill.train_on == "text"),
    "self_written_prompts": ("data.self_written_prompts", lambda recipe: recipe.data.self_written_prompts > 0),
    "answer engine": ("generate.engine", lambda recipe: not recipe.generate.is_local),
    "sharded teacher": ("distill.teacher.parallelism=fsdp2", lambda recipe: is_sharded(recipe.distill.teacher)),
    "fsdp2": ("distill.parallelism=fsdp2 or hsdp", lambda recipe: recipe.distill.parallelism != "ddp"),
}


def refuse_unfit(recipe: Recipe, model_type: str) -> None:
    """Raise UserError for what a recipe asks for and its target's family cannot be given, where the family is known."""
    family = FAMILIES.get(model_type)
    for feature, (key, asks) in ASKED.items():
        if family is not None and asks(recipe):
            family.refuse(feature, key)

"""The recipe's own run as one more training of the law: the longest there is, and made already. No torch."""

from architectures.checkpoints.manifest import changed_inputs
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from distill.budget.law import Budget
from distill.estimates.expected_work import expected_reading
from distill.recipe.recipe import Recipe
from distill.run.run import Run
from distill.run.stage_inputs import draft_inputs


def own_budget(recipe: Recipe) -> Budget | None:
    """What the finished draft of a recipe was made with, if it is the target's cut and learned answers alone.

    None where there is none, or it was made otherwise than the recipe now says.
    """
    if recipe.architecture.source is not None or recipe.architecture.stages is not None:
        return None
    run = Run.of(recipe)
    made, answers = run.draft.manifest, run.data.manifest
    if made is None or answers is None or not made.get("finished") or recipe.distill.train_on != "answers":
        return None
    if changed_inputs(made, draft_inputs(run)):
        return None
    counts, shape = answers["counts"]["train"], Shape.from_config(read_config(run.draft.path))
    reading = expected_reading(recipe.distill, counts["answers"])
    if reading is None or reading.epochs is None:
        return None
    return Budget(counts["answer_tokens"], reading.epochs, 0, shape.layers, shape.head_vocab or shape.vocab)

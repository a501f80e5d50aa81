"""Whether an order of layers is still to be found, of a target that it cannot be found of. No torch."""

from architectures.pruning.plan import needed_scores
from architectures.shapes.shape import Shape
from distill.recipe.held_target import refuse_orders
from distill.run.run import Run


def refuse_due_orders(run: Run, source: Shape) -> None:
    """Raise UserError if a run will ask for an order of layers that cannot be found of its target.

    Args:
        run: Nothing of which is looked at where its scores, or its draft, are made.
        source: Shape of what the draft is cut out of.
    """
    wanted = run.recipe.architecture
    is_due = wanted.plan is None and wanted.source is None and not (run.scores.is_finished or run.init.is_finished)
    if is_due:
        refuse_orders(run.recipe.target.placement, needed_scores(source, wanted))

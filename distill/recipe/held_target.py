"""What a recipe cannot ask of a target that is not whole in memory, or in fewer bits. No torch."""

from architectures.errors import UserError
from architectures.pruning.plan import LAYER_SCORES
from architectures.settings.holding import Placement
from architectures.shapes.section import ArchitectureConfig, TargetConfig
from distill.recipe.sections.teacher import LiveTeacher, is_sharded
from distill.recipe.sections.training import DistillConfig

SEARCHED = {"whole": set(), "spread": {"merge_order"}, "layers": {"merge_order", "removal_order"}}
WHY = {
    "spread": "with merged copies of all layers in memory",
    "layers": "and for each would read all that follow from the disk again",
}


def refuse_held(target: TargetConfig, architecture: ArchitectureConfig, distill: DistillConfig) -> None:
    """Raise ValueError for what needs all weights of the target at every step of a training."""
    if target.bits is not None:
        refuse_packed(target, architecture, distill)
    if target.placement == "whole":
        return
    where = f"when target.placement is {target.placement}"
    if architecture.method == "learned_masks":
        raise ValueError(
            f"must not follow architecture.method: learned_masks {where}: masks are trained together with all of the "
            "target's weights. Choose another method, or a target that fits whole."
        )
    if distill.online is not None:
        raise ValueError(
            f"must have mode: offline {where}, got online: requests are answered while the student trains, and every "
            "token would wait for all weights. Let it answer first (data)."
        )
    if isinstance(distill.teacher, LiveTeacher):
        raise ValueError(  # noqa: TRY004  # a mistake in a recipe
            f"must have teacher.source: cache or none {where}, got live: all weights would be brought along for every "
            "batch. Set distill.teacher.source=cache, for which each is read once for many answers."
        )


def refuse_packed(target: TargetConfig, architecture: ArchitectureConfig, distill: DistillConfig) -> None:
    """Raise ValueError for what needs the target's own weights, or cuts them into shards."""
    if architecture.method == "learned_masks":
        raise ValueError(
            f"must not follow architecture.method: learned_masks when target.bits is {target.bits}: masks are trained "
            "on the weights as they are. Leave target.bits out, or choose another method."
        )
    if is_sharded(distill.teacher):
        raise ValueError(
            f"must leave out teacher.parallelism when target.bits is {target.bits}: packed weights are not cut into "
            "shards. Leave one of the two out."
        )


def refuse_orders(placement: Placement, missing: set[str]) -> None:
    """Raise UserError if an order of layers is to be found that needs all weights in memory."""
    methods = [name for name, score in LAYER_SCORES.items() if score in missing & SEARCHED[placement]]
    if methods:
        raise UserError(
            f"target.placement is {placement}: architecture.method {methods[0]} runs the target without each of its "
            f"layers, {WHY[placement]}. Take block_influence, whose scores come of one pass, or the order found on a "
            "larger machine (architecture.plan or architecture.scores)."
        )

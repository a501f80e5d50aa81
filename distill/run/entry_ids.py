"""Which ids the entries of a cache are of, where the draft's head says some alone. No torch.

A cache of hidden states is of no head in particular: it serves every draft of the target, whatever that says. Entries
(top_k, samples) are of the teacher given that it says one of the draft's ids, and so they are taken once these ids are
known, which is when a draft was cut: <run>/init says them, or the init of the first stage where there are several,
whose head all later ones keep.
"""

from pathlib import Path

from architectures.checkpoints.manifest import read_manifest
from architectures.small_head.record import CONFIG_KEY, read_draft_vocabulary
from architectures.targets.target import read_config
from distill.recipe.recipe import Recipe
from distill.recipe.teacher import SparseCache
from distill.run.stage_folders import require_finished


def entry_ids(recipe: Recipe, init: Path) -> tuple[int, ...] | None:
    """The ids that kept entries of a recipe's cache are of, ascending; None where that is every id, or none are kept.

    Args:
        recipe: With a cached teacher.
        init: The draft that says them.

    Raises:
        UserError: If the recipe asks for a small vocabulary and no draft was cut yet.
    """
    if not isinstance(recipe.distill.teacher, SparseCache):
        return None
    if recipe.architecture.vocabulary is not None:
        require_finished(init, "prune")
    elif read_manifest(init) is None:
        return None
    return read_draft_vocabulary(init).ids if CONFIG_KEY in read_config(init) else None

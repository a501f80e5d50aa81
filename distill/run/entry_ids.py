"""Which ids the entries of a cache are of, where the draft's head says some alone. No torch.

A cache of hidden states is of no head in particular: it serves every draft of the target, whatever that says. Entries
(top_k, samples) are of the teacher given that it says one of the draft's ids, and so they are taken once these ids are
known, which is when a draft was cut: <run>/init says them, or the init of the first stage where there are several,
whose head all later ones keep.
"""

from architectures.targets.target import read_config
from architectures.vocabulary import CONFIG_KEY, read_draft_vocabulary
from distill.run.progressive import first_init
from distill.run.run import Run


def entry_ids(run: Run) -> tuple[int, ...] | None:
    """The ids that kept entries of a run's cache are of, ascending; None where that is every id, or none are kept.

    Args:
        run: With a cached teacher.

    Raises:
        UserError: If the recipe asks for a small vocabulary and no draft was cut yet.
    """
    if not run.recipe.distill.teacher.keeps_entries:
        return None
    init = first_init(run)
    if run.recipe.architecture.vocabulary is not None:
        init.require_finished()
    elif not init.is_finished:
        return None
    return read_draft_vocabulary(init.path).ids if CONFIG_KEY in read_config(init.path) else None

"""A pruning plan with the output head that a recipe asks for. No torch."""

from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.pruning.plan_record import PruningPlan
from architectures.vocabulary import KEY, broken_law, read_draft_vocabulary
from distill.vocabulary.output_ids import Choice


def with_choice(
    plan: PruningPlan, choice: Choice | None, weights: Path, plan_file: str | None
) -> tuple[PruningPlan, dict[str, Any]]:
    """The plan with the ids that a recipe chose, and their origin, for who opens the draft.

    A plan or a source whose head is small already keeps its ids.

    Args:
        plan: With the target's vocabulary.
        choice: None where the recipe asks for none.
        weights: The folder it cuts.
        plan_file: Where the plan was read from; None where it was made.

    Raises:
        UserError: If the recipe asks for other ids than are there, or these are none of the target's.
    """
    given, named = ids_given(plan, weights), weights if plan.source.head_vocab else plan_file
    if given is not None and (mistake := broken_law(given, plan.draft.vocab)) is not None:
        raise UserError(f"{named}: {mistake}, as the target has them. Name one that was made for this target.")
    if choice is None:
        return plan, {} if plan.vocabulary is None else {"from": plan_file}
    if given is None:
        print(f"   {vocabulary_line(choice, plan.draft.vocab)}", flush=True)
        return plan.with_vocabulary(choice.ids), choice.origin
    if given != choice.ids:
        others = len(set(choice.ids) - set(given))
        raise UserError(
            f"{named}: says {len(given)} ids, and {KEY} asks for {len(choice.ids)}, of which it lacks {others}. "
            f"Leave {KEY} out to keep these, or name a source or a plan that says every id."
        )
    return plan, choice.origin


def ids_given(plan: PruningPlan, weights: Path) -> tuple[int, ...] | None:
    """The ids that are output already, by the head of what is cut or by the plan; None where that is every id."""
    return read_draft_vocabulary(weights).ids if plan.source.head_vocab else plan.vocabulary


def vocabulary_line(choice: Choice, vocab_size: int) -> str:
    """How many ids a draft outputs, what they come from, and how much of that they cover."""
    covered = [
        f"{share:.4f} of {domain} ({name})"
        for name, domains in choice.origin.get("coverage", {}).items()
        for domain, share in domains.items()
    ]
    words = f"{len(choice.ids):,} of {vocab_size:,} ids, from {choice.origin['from']}"
    return f"{words}, which cover {', '.join(covered)}" if covered else words

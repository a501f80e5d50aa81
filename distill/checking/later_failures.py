"""What would fail hours after a run begins: packages, prompts and token ids. No torch.

Each of these is refused by the stage that needs it too; here it is looked for before the first one computes anything.
Every look returns what it could not see without fetching or importing something, or None.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from architectures.draft_vocabulary.lists import list_file, read_list
from architectures.draft_vocabulary.tokens import tokens_beyond
from architectures.errors import UserError
from architectures.settings.recipe_command import command_of
from architectures.shapes.shape import Shape
from architectures.small_head.config import COUNTED
from distill.checking.calibration_length import look_for_short_calibration
from distill.data.conversations import Conversation
from distill.data.held_out import distinct
from distill.estimates.vocabulary_coverage import target_at_hand
from distill.recipe.recipe import Recipe
from distill.recipe.sections.monitoring import missing_package
from distill.run.run import Run
from eval.answers.earlier_answers import refuse_ids_beyond
from eval.prompts import Prompt

Rows = Sequence[Prompt | Conversation]
Sources = Sequence[Rows | None]  # the rows of each source; None of a data set, which is not opened
Tasks = Sequence[Sequence[Prompt] | None]


@dataclass(frozen=True)
class Looked:
    """What is looked at.

    Attributes:
        recipe: That is checked.
        target: Its target's shape.
        source: Of what the draft is cut out of.
        is_answered: Whether the answers of this recipe are there, and no prompt is needed for them any more.
    """

    recipe: Recipe
    target: Shape
    source: Shape
    is_answered: bool


def looks(of: Looked, rows: Sources, tasks: Tasks) -> list[Callable[[], str | None]]:
    """Each looks for one kind of failure.

    Args:
        of: The recipe and what is known of it.
        rows: Of data.prompts.
        tasks: Of eval.tasks.
    """
    return [
        partial(look_for_missing_packages, of),
        partial(look_for_few_prompts, of, rows),
        partial(look_for_unopened_tasks, of.recipe, tasks),
        partial(look_for_ids_beyond, of, rows),
        partial(look_for_short_calibration, of.recipe, of.source, rows),
    ]


def look_for_missing_packages(of: Looked) -> None:
    """Raise UserError if a training that is still to come logs to a tracker whose package is not installed."""
    is_trained = of.is_answered and (Run.of(of.recipe).draft.manifest or {}).get("finished")
    problems = [missing_package(name) for name in of.recipe.distill.loggers] if not is_trained else []
    if any(problems):
        raise UserError("\n".join(filter(None, problems)))


def look_for_few_prompts(of: Looked, sources: Sources) -> str | None:
    """Raise UserError if the prompts that differ leave none to train on; answers that are there need no prompts."""
    recipe = of.recipe
    if of.is_answered:
        return None
    unopened = [named.name for named, rows in zip(recipe.data.prompts, sources, strict=True) if rows is None]
    if unopened:
        return f"whether {', '.join(map(str, unopened))} can be had, and is enough: {command_of('generate')} opens it"
    rows, own = [row for rows in sources for row in rows or ()], recipe.data.self_written_prompts
    num_different, held_out = len(distinct(rows)), recipe.data.num_eval_prompts
    if num_different < len(rows) and num_different + own < held_out + recipe.distill.learns_answers:
        raise UserError(
            f"data.num_eval_prompts={held_out} leaves none to train on: {len(rows) - num_different} of the "
            f"{len(rows) + own} prompts ask what another asks. Hold out fewer, or add prompts."
        )
    return None


def look_for_unopened_tasks(recipe: Recipe, tasks: Tasks) -> str | None:
    """Which of eval.tasks were not opened."""
    names = [str(named.name) for named, prompts in zip(recipe.eval.tasks, tasks, strict=True) if prompts is None]
    return f"whether {', '.join(names)} can be had: the scorecard opens it" if names else None


def look_for_ids_beyond(of: Looked, sources: Sources) -> None:
    """Raise UserError for token ids that the target has no row for.

    They may stand in the list of a small vocabulary, in answers of earlier runs, and in texts with tokens that the
    target's tokenizer has beyond its vocabulary.
    """
    recipe, vocab_size = of.recipe, of.target.vocab
    wanted, target, folder = recipe.architecture.vocabulary, recipe.target.path, target_at_hand(Run.of(recipe))
    if wanted is not None and wanted.origin not in COUNTED and folder is None:  # else compared with the tokenizer
        refuse_list_beyond(wanted.origin, wanted.size, target, vocab_size)
    if not of.is_answered:
        refuse_ids_beyond([Path(each) for each in recipe.data.answers_from], target, vocab_size)
        beyond = {} if folder is None else tokens_beyond(folder, vocab_size)
        for text, number in beyond.items():
            refuse_text(text, number, sources, f"{target}, vocab_size {vocab_size}")


def refuse_list_beyond(origin: str, size: int | None, target: str, vocab_size: int) -> None:
    """Raise UserError for a list with an id that a target has no row for."""
    beyond = [number for number in read_list(origin, size) if number >= vocab_size]
    if beyond:
        raise UserError(
            f"{list_file(origin)}: holds {beyond[0]}, which is beyond the vocabulary of {target}, vocab_size "
            f"{vocab_size}. Name a list that was made with its tokenizer."
        )


def refuse_text(text: str, number: int, sources: Sources, vocabulary: str) -> None:
    """Raise UserError for the first row with a text that is a token beyond the vocabulary."""
    for row in (row for rows in sources for row in rows or ()):
        if any(text in message["content"] for message in row.messages):
            raise UserError(
                f"{row.source}: holds {text!r}, token id {number}, which is beyond the vocabulary of {vocabulary}. "
                "Mend or delete this row, or use the tokenizer the model was made with."
            )


def scored_rows(recipe: Recipe, tasks: Tasks) -> list[tuple[str, str]]:
    """How many prompts a scorecard is of at most, where that is fewer than it may be of."""
    asked, there = recipe.eval.num_prompts, recipe.data.num_eval_prompts
    if any(prompts is None for prompts in tasks):
        return []
    if tasks:
        there = sum(len(prompts or ()) for prompts in tasks)
    kind = "of eval.tasks" if tasks else "held out (data.num_eval_prompts)"
    return [("scored", f"{there} prompts {kind}, of the {asked} that eval.num_prompts allows")] if there < asked else []

"""Whether engines can serve the draft that a recipe asks for, told before anything is cut. No torch."""

from dataclasses import replace

from architectures.engines.page import summary
from architectures.engines.pair.facts import DEFAULT_LOOKAHEAD, Pair
from architectures.engines.pair.finding import EngineName, Finding
from architectures.engines.pair.read_facts import read_model
from architectures.engines.table import ENGINES, findings, refusals
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.settings.recipe_command import command_of
from architectures.shapes.shape import Shape
from distill.recipe.recipe import Recipe
from distill.run.run import Run

KEY = "export.engines"
NOT_MADE = "it is written when the draft is exported"


def planned_pair(
    recipe: Recipe, draft: Shape, *, tensor_parallel: int | None = None, lookahead: int | None = None
) -> Pair:
    """The pair of a recipe, as far as it is known before anything is cut.

    Args:
        recipe: Names the target, what the draft is cut out of, and its folder.
        draft: Its shape, with the target's vocabulary.
        tensor_parallel: Devices; None takes the recipe's.
        lookahead: Tokens proposed a round; None takes the engines' own default.

    Raises:
        UserError: As `read_model`.
    """
    target, wanted = read_model(recipe.target.path, recipe.target.revision), recipe.architecture
    source = target if wanted.source is None else read_model(wanted.source, wanted.source_revision)
    folder = Run.of(recipe).draft.path
    planned = replace(
        source,
        name=str(folder),
        path=str(folder.absolute()),
        vocab_size=draft.vocab,
        small_head=draft.head_vocab,
        shape=draft,
        explicit_head_dim=source.explicit_head_dim or FAMILIES[draft.family].width,  # as in draft_config
        dtype=recipe.export.dtype,
        quantisation=None,
        rotary_layers=None,
        tokenizer=None,
        without_tokenizer=NOT_MADE,
        settings=None,
        form=None,
        planned=True,
    )
    devices = recipe.export.tensor_parallel if tensor_parallel is None else tensor_parallel
    return Pair(
        draft=planned,
        target=target,
        revision=recipe.target.revision,
        tensor_parallel=devices,
        lookahead=lookahead or DEFAULT_LOOKAHEAD,
    )


def engine_blocks(recipe: Recipe, draft: Shape) -> dict[str, list[tuple[str, str]]]:
    """One row for each engine that the recipe names, under a title; nothing where it names none.

    Raises:
        UserError: With every reason why one of them does not serve the draft, one line each.
    """
    engines: tuple[EngineName, ...] = tuple(dict.fromkeys(recipe.export.engines))
    if not engines:
        return {}
    pair = planned_pair(recipe, draft)
    by_engine: dict[EngineName, list[Finding]] = {engine: findings(engine, pair) for engine in engines}
    problems = [refusal(engine, finding) for engine, of in by_engine.items() for finding in refusals(of)]
    if problems:
        raise UserError("\n".join(problems))
    rows = [(ENGINES[engine].label, summary(of)) for engine, of in by_engine.items()]
    rows.append(("", f"{command_of('preflight')} tells which"))
    return {f"engines (tensor parallel {pair.tensor_parallel}), by rules read in their code": rows}


def refusal(engine: EngineName, finding: Finding) -> str:
    """Why an engine does not serve the draft, and what to do."""
    return f"{KEY}: {ENGINES[engine].label} does not serve this draft. {finding.explanation} {finding.remedy}"

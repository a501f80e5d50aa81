"""The block of `widedraft check` that weighs sizes of the output head: bytes of a step against coverage. No torch."""

from dataclasses import replace
from pathlib import Path

from architectures.shapes import DTYPE_BYTES, Shape
from distill.coverage import Said, answers_said
from distill.memory import matrix_parameters
from distill.recipe import Recipe

Row = tuple[str, str]

SIZES = (2048, 4096, 8192, 16384)
LEAST_SHARE = 0.1  # of the weights a step reads: a head below it is not worth a question


def head_blocks(recipe: Recipe, source: Shape, target: Shape, draft: Shape) -> dict[str, list[Row]]:
    """The block under its title; nothing where the head is a small part of a step, or came cut from its source.

    Args:
        recipe: Its own size is among those told.
        source: What the draft is cut out of.
        target: Its step is what a draft's is held against.
        draft: With whatever head.
    """
    asked = sizes_of(recipe, target.vocab)
    if source.head_vocab or not asked or head_share(draft) < LEAST_SHARE:
        return {}
    said = answers_said(recipe)
    rows = [size_row(size, target, draft, recipe, said) for size in (*asked, target.vocab)]
    unsaid = f"unknown before {Path(recipe.run_dir) / 'data'} holds finished answers"
    title = (
        f"output head, by the ids it can say: weights that a step of the draft reads, {recipe.eval.dtype}, estimated"
    )
    return {title: rows if said else [*rows, ("coverage", unsaid)]}


def sizes_of(recipe: Recipe, vocab: int) -> list[int]:
    """Those that are told of, from small to large, and less than all."""
    wanted = recipe.architecture.vocabulary
    own = [] if wanted is None or wanted.size is None else [wanted.size]
    return sorted(size for size in {*SIZES, *own} if size < vocab)


def head_share(draft: Shape) -> float:
    """Share of the whole head in the weights that a step reads with it."""
    whole = replace(draft, head_vocab=0)
    return whole.vocab * whole.hidden / matrix_parameters(whole)


def size_row(size: int, target: Shape, draft: Shape, recipe: Recipe, said: Said | None) -> Row:
    """What a head of so many ids costs, and what it covers."""
    read, whole = (matrix_parameters(replace(draft, head_vocab=rows)) for rows in (size, 0))
    mebibytes = read * DTYPE_BYTES[recipe.eval.dtype] / 2**20
    wanted = recipe.architecture.vocabulary
    own = ", as this recipe has it" if size == (target.vocab if wanted is None else wanted.size) else ""
    cost = (
        f"{mebibytes:7.1f} MiB, {read / whole:4.0%} of the whole head's, "
        f"{read / matrix_parameters(target):.3f} of the target's step"
    )
    return f"{size:7,} ids", cost + covered_words(size, target, said) + own


def covered_words(size: int, target: Shape, said: Said | None) -> str:
    """The share of training and held-out answers that the ids said most cover; the whole head covers them all."""
    if said is None or size == target.vocab:
        return ""
    train, held_out = (said.covered(size, counts) for counts in (said.train, said.all_held_out))
    return f"; the ids said most cover {train:.1%} of training answers, {held_out:.1%} of held-out ones"

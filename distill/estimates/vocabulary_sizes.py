"""The block of `widedraft check` that weighs sizes of the output head: bytes of a step against coverage. No torch."""

from dataclasses import replace

from architectures.draft_vocabulary.asked import asked_size
from architectures.draft_vocabulary.tokens import Tokens, read_tokens
from architectures.files.number_types import Dtype
from architectures.shapes.shape import DTYPE_BYTES, Shape
from architectures.small_head.config import VocabularyConfig
from distill.estimates.coverage import IdCounts, id_counts_of_answers
from distill.estimates.memory import matrix_parameters
from distill.estimates.vocabulary_coverage import MOST_TOKENS, target_at_hand
from distill.recipe.recipe import Recipe
from distill.run.run import Run

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
    folder = target_at_hand(Run.of(recipe))
    tokens = None if folder is None else read_tokens(folder, target.vocab)
    own = own_size(recipe.architecture.vocabulary, target.vocab)
    asked = sizes_told(own, target.vocab, tokens)
    if source.head_vocab or not asked or head_share(draft) < LEAST_SHARE:
        return {}
    id_counts = None if tokens is None else id_counts_of_answers(recipe, tokens, most_tokens=MOST_TOKENS)
    rows = [
        size_row(size, target, draft, id_counts, dtype=recipe.eval.dtype, is_own=size == own)
        for size in (*asked, target.vocab)
    ]
    unsaid = f"unknown before {Run.of(recipe).data.path} holds finished answers"
    title = (
        f"output head, by the ids it can say: weights that a step of the draft reads, {recipe.eval.dtype}, estimated"
    )
    return {title: rows if id_counts else [*rows, ("coverage", unsaid)]}


def sizes_told(own: int, vocab: int, tokens: Tokens | None = None) -> list[int]:
    """Those that are told of, from small to large: less than all, and no less than is always kept."""
    least, most = (0, vocab - 1) if tokens is None else (len(tokens.always), min(len(tokens.ids), vocab - 1))
    return sorted({size for size in SIZES if least <= size <= most} | ({own} if own < vocab else set()))


def own_size(wanted: VocabularyConfig | None, vocab: int) -> int:
    """How many output ids the recipe's draft has."""
    return vocab if wanted is None else asked_size(wanted, vocab)


def head_share(draft: Shape) -> float:
    """Share of the whole head in the weights that a step reads with it."""
    whole = replace(draft, head_vocab=0)
    return whole.vocab * whole.hidden / matrix_parameters(whole)


def size_row(size: int, target: Shape, draft: Shape, id_counts: IdCounts | None, *, dtype: Dtype, is_own: bool) -> Row:
    """What a head of so many ids costs, and what it covers."""
    read, whole = (matrix_parameters(replace(draft, head_vocab=rows)) for rows in (size, 0))
    mebibytes = read * DTYPE_BYTES[dtype] / 2**20
    own = ", as this recipe has it" if is_own else ""
    cost = (
        f"{mebibytes:7.1f} MiB, {read / whole:4.0%} of the whole head's, "
        f"{read / matrix_parameters(target):.3f} of the target's step"
    )
    return f"{size:7,} ids", cost + covered_words(size, target, id_counts) + own


def covered_words(size: int, target: Shape, id_counts: IdCounts | None) -> str:
    """The share of training and held-out answers that the ids said most cover; the whole head covers them all."""
    if (
        id_counts is None
        or size == target.vocab
        or not len(id_counts.tokens.always) <= size <= len(id_counts.tokens.ids)
    ):
        return ""  # of a list, which may keep less
    train, held_out = (id_counts.covered(size, counts) for counts in (id_counts.train, id_counts.all_held_out))
    return f"; the ids said most cover {train:.1%} of training answers, {held_out:.1%} of held-out ones"

"""The output heads that may be chosen: how many ids a draft can output. No torch."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from architectures.errors import UserError
from architectures.settings.kinds import MOST
from architectures.shapes.shape import Shape
from architectures.vocabulary import VocabularyConfig
from distill.recipe.recipe import Recipe

ALL = "all"  # the word for the whole head, which outputs WHOLE ids: as Shape.head_vocab has it
WHOLE = 0


VocabularySize = Annotated[int, Field(ge=1, le=MOST)] | Literal["all"]


def head_rows(size: int | str) -> int:
    """How many ids a value of --vocabularies says."""
    return WHOLE if size == ALL else int(size)


def size_word(size: int) -> str:
    """As --vocabularies takes it."""
    return ALL if size == WHOLE else str(size)


def vocabularies_of(recipe: Recipe, target: Shape, sizes: Sequence[int]) -> list[VocabularyConfig | None]:
    """Section architecture.vocabulary of the candidates, from few ids to all, which is none; of no sizes the recipe's.

    Ids are ranked as the recipe ranks them, else by what is trained on.

    Raises:
        UserError: If a size stands there twice, is not below the target's, or cannot be cut.
    """
    own = recipe.architecture.vocabulary
    if not sizes:
        return [own]
    require_sizes(target, sizes)
    by = own.origin if own is not None else "text" if recipe.distill.train_on == "text" else "answers"
    counts = sorted(size for size in sizes if size != WHOLE)
    sections: list[VocabularyConfig | None] = [VocabularyConfig.model_validate({"size": n, "from": by}) for n in counts]
    return [*sections, None] if WHOLE in sizes else sections


def require_sizes(target: Shape, sizes: Sequence[int]) -> None:
    """Raise UserError unless every size is there once, and a head of so many ids can be cut."""
    for size, count in Counter(sizes).items():
        if count > 1:
            raise UserError(f"--vocabularies {size_word(size)}: stands there {count} times. Give each size once.")
        if target.head_vocab:
            raise UserError(
                f"--vocabularies {size_word(size)}: what the draft is cut out of says {target.head_vocab} ids, and "
                "keeps these. Leave it away, or cut the draft out of a model with its whole head."
            )
        if size != WHOLE and size >= target.vocab:
            raise UserError(
                f"--vocabularies {size}: the target has {target.vocab} token ids. Choose fewer, or the whole head."
            )

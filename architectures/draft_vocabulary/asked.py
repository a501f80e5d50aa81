"""How many ids a recipe has the draft output, which by their counts, and the shape that this makes. No torch."""

from collections.abc import Mapping

from architectures.draft_vocabulary.lists import KEY, read_list
from architectures.draft_vocabulary.tokens import Tokens
from architectures.errors import UserError
from architectures.shapes.shape import Shape
from architectures.small_head.config import COUNTED, VocabularyConfig
from architectures.small_head.counting import filled, most_frequent


def with_asked_head(draft: Shape, wanted: VocabularyConfig | None) -> Shape:
    """The draft's shape with the output head that a recipe asks for, which is never the embedding.

    Args:
        draft: With the target's vocabulary; its own head may be small already, as its source's.
        wanted: None leaves the head as it is.

    Raises:
        UserError: As `asked_size`, or if the source's head outputs another number of ids.
    """
    if wanted is None:
        return draft
    size = asked_size(wanted, draft.vocab)
    if draft.head_vocab not in (0, size):
        raise UserError(
            f"{KEY} asks for {size} ids, and what the draft is cut out of says {draft.head_vocab}. Rows that were cut "
            f"away cannot be had back: leave {KEY} out to keep its ids, or cut the draft out of a whole model."
        )
    return draft.with_head_of(size)


def asked_size(wanted: VocabularyConfig, vocab_size: int) -> int:
    """How many ids the draft outputs, fewer than the target.

    Raises:
        UserError: If they are as many or more, or of a list that cannot be read.
    """
    size = wanted.size if wanted.origin in COUNTED else len(read_list(wanted.origin, wanted.size))
    assert size is not None  # of counts the recipe says it
    if size >= vocab_size:
        raise UserError(
            f"{KEY}.size must be below the target's vocab_size {vocab_size}, got {size}. Leave {KEY} out: the draft "
            "then says every id."
        )
    return size


def ids_by_count(counts: Mapping[int, int], tokens: Tokens, size: int) -> tuple[int, ...]:
    """Exactly so many ids, ascending: special tokens and bytes, the most frequent ones, the lowest of those unsaid.

    Args:
        counts: By token id; ids that are no token's do not count.
        tokens: Of the target.
        size: Ids wanted.

    Raises:
        UserError: If there are fewer tokens, or more that are always kept.
    """
    if size < len(tokens.always):
        raise UserError(
            f"{KEY}.size must be at least {len(tokens.always)}, got {size}: {len(tokens.special)} special tokens and "
            f"{len(tokens.single_bytes)} single bytes are always kept. Raise it, or name a list with {KEY}.from."
        )
    if size > len(tokens.ids):
        raise UserError(
            f"{KEY}.size must be at most {len(tokens.ids)}, the tokens that the target's tokenizer has, got {size}: "
            f"the ids beyond are padding, which no text has. Lower it, or leave {KEY} out."
        )
    known = {number: count for number, count in counts.items() if number in tokens.ids}
    return filled(most_frequent(known, tokens.always, size), tokens.ids, size)

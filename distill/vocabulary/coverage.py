"""How much of a run's answers output heads of several sizes could output: coverage, by domain. No torch.

Ids are chosen by the answers that are trained on, as the draft's are, and held against those that are held out.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from architectures.vocabulary import Tokens, coverage, ids_by_count
from distill.estimate import finished_counts
from distill.recipe.recipe import Recipe
from distill.run.run import Run
from distill.vocabulary.answer_counts import Counts, id_counts_in, pooled


@dataclass(frozen=True)
class IdCounts:
    """How often a run's answers hold each token id.

    Attributes:
        train: Those that are trained on.
        held_out: The others, by domain.
        tokens: Of the target, some of which are kept however seldom they occur.
    """

    train: Counter[int]
    held_out: Counts
    tokens: Tokens

    @cached_property
    def all_held_out(self) -> Counter[int]:
        return pooled(self.held_out)

    def covered(self, size: int, counts: Mapping[int, int]) -> float:
        """Share of some counted tokens that a draft of so many ids can output, in [0, 1]; NaN of no tokens.

        Raises:
            UserError: If the target's tokenizer has fewer tokens, or more that are always kept.
        """
        return coverage(ids_by_count(self.train, self.tokens, size), counts)


def id_counts_of_answers(recipe: Recipe, tokens: Tokens, *, most_tokens: int | None = None) -> IdCounts | None:
    """Of the finished answers in <run>/data; None where they are not this recipe's, or none are trained on.

    Args:
        recipe: Whose run it is.
        tokens: Of its target.
        most_tokens: Counted of either kind of answers; None counts all.

    Raises:
        UserError: If a file of them is missing or damaged.
    """
    counts = finished_counts(recipe)
    if counts is None or not counts["train"]["answers"]:
        return None
    data = Run.of(recipe).data.path
    train, held_out = (id_counts_in(data, name, most_tokens=most_tokens) for name in ("train", "eval"))
    return IdCounts(pooled(train), held_out, tokens)

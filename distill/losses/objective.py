"""What a recipe trains on: a weighted sum of token losses, as one function of student logits and a teacher's words.

Shape suffixes used in this file:
    C = some answer tokens, one row each; V = vocabulary entries
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from distill.losses.formulas import (
    cross_entropy,
    forward_kl,
    jensen_shannon,
    kl_mixture,
    lk_hybrid,
    negative_log_acceptance,
    reverse_kl,
    skewed_forward_kl,
    skewed_reverse_kl,
    total_variation,
)
from distill.losses.sparse import kept_forward_kl
from distill.recipe.losses import Loss, LossTerm, loss_terms
from distill.recipe.teacher import Contents

# What a teacher says of some rows: its logits_CV, or what a cache kept of each row instead.
Said = Tensor | Mapping[str, Tensor]

OF_BOTH: Mapping[str, Callable[..., Tensor]] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "kl_mixture": kl_mixture,
    "jensen_shannon": jensen_shannon,
    "skewed_forward_kl": skewed_forward_kl,
    "skewed_reverse_kl": skewed_reverse_kl,
    "total_variation": total_variation,
    "negative_log_acceptance": negative_log_acceptance,
    "lk_hybrid": lk_hybrid,
}
OF_KEPT_ENTRIES: Mapping[str, Callable[..., Tensor]] = {"forward_kl": kept_forward_kl}
COMPARISONS = {"hidden": OF_BOTH, "top_k": OF_KEPT_ENTRIES, "samples": OF_KEPT_ENTRIES}


@dataclass(frozen=True)
class Objective:
    """A weighted sum of losses of single tokens.

    Attributes:
        terms: The losses, their weights and options.
        temperature: Of every loss that compares student and teacher; cross_entropy is always at 1.
        comparisons: The losses that compare student and teacher, by name: of both models' logits, or of the student's
            and what a cache kept of the teacher.
    """

    terms: tuple[LossTerm, ...]
    temperature: float = 1.0
    comparisons: Mapping[str, Callable[..., Tensor]] = field(default_factory=lambda: OF_BOTH)

    @property
    def asks_teacher(self) -> bool:
        """Whether any term compares with the teacher."""
        return any(term.name in OF_BOTH for term in self.terms)

    def __call__(self, student_CV: Tensor, teacher: Said | None, token_ids_C: Tensor) -> Tensor:
        """loss_C, float32, from the student's logits, what the teacher says of them and the tokens that followed.

        The teacher's words are what the comparisons take, and may be None where asks_teacher is False.
        """
        first, *others = (term.weight * self.of_term(term, student_CV, teacher, token_ids_C) for term in self.terms)
        return sum(others, start=first)

    def of_term(self, term: LossTerm, student_CV: Tensor, teacher: Said | None, token_ids_C: Tensor) -> Tensor:
        """One term without its weight."""
        if term.name not in OF_BOTH:
            return cross_entropy(student_CV, token_ids_C)
        assert teacher is not None, "who asks the teacher is told so by asks_teacher"
        return self.comparisons[term.name](student_CV, teacher, temperature=self.temperature, **term.options)


def build_objective(loss: Loss, *, temperature: float, contents: Contents | None = None) -> Objective:
    """The objective of a recipe's distill.loss.

    Args:
        loss: A loss, or a weighted sum; one that the contents serve.
        temperature: Of the recipe.
        contents: What a cache keeps of the teacher; None where it is run.
    """
    return Objective(loss_terms(loss), temperature, COMPARISONS[contents or "hidden"])

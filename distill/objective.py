"""What a recipe trains on: a weighted sum of token losses, as one function of logits.

Shape suffixes used in this file:
    C = some answer tokens, one row each; V = vocabulary entries
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from distill.loss_config import Loss, LossTerm, loss_terms
from distill.losses import (
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


@dataclass(frozen=True)
class Objective:
    """A weighted sum of losses of single tokens.

    Attributes:
        terms: The losses, their weights and options.
        temperature: Of every loss that compares student and teacher; cross_entropy is always at 1.
    """

    terms: tuple[LossTerm, ...]
    temperature: float = 1.0

    @property
    def asks_teacher(self) -> bool:
        """Whether any term compares with the teacher."""
        return any(term.name in OF_BOTH for term in self.terms)

    def __call__(self, student_CV: Tensor, teacher_CV: Tensor | None, token_ids_C: Tensor) -> Tensor:
        """loss_C, float32, from both models' logits and the tokens that followed.

        The teacher's logits may be None where asks_teacher is False.
        """
        first, *others = (term.weight * self.of_term(term, student_CV, teacher_CV, token_ids_C) for term in self.terms)
        return sum(others, start=first)

    def of_term(self, term: LossTerm, student_CV: Tensor, teacher_CV: Tensor | None, token_ids_C: Tensor) -> Tensor:
        """One term without its weight."""
        if term.name not in OF_BOTH:
            return cross_entropy(student_CV, token_ids_C)
        assert teacher_CV is not None, "who asks the teacher is told so by asks_teacher"
        return OF_BOTH[term.name](student_CV, teacher_CV, temperature=self.temperature, **term.options)


def build_objective(loss: Loss, *, temperature: float) -> Objective:
    """The objective of a recipe's distill.loss."""
    return Objective(loss_terms(loss), temperature)

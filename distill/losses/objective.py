"""What a recipe trains on: a weighted sum of token losses, as one function of student logits and a teacher's words.

Shape suffixes used in this file:
    C = some answer tokens, one row each; V = vocabulary entries
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from distill.formulas.losses import Knowledge, LossTerm, loss_terms

# What a teacher outputs for some rows: its logits_CV, or what a cache kept of each row instead.
TeacherOutput = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Objective:
    """A weighted sum of losses of single tokens.

    Attributes:
        terms: The losses, their weights and options.
        temperature: Of every loss that compares student and teacher; cross_entropy is always at 1.
    """

    terms: tuple[LossTerm, ...]
    temperature: float

    @property
    def asks_teacher(self) -> bool:
        """Whether any term compares with the teacher."""
        return any(term.loss.needs > Knowledge.TOKENS for term in self.terms)

    def __call__(self, student_CV: Tensor, teacher: TeacherOutput | None, token_ids_C: Tensor) -> Tensor:
        """loss_C, float32, from the student's logits, what the teacher outputs for them and the tokens that followed.

        The teacher's output may be None where asks_teacher is False.
        """
        first, *others = (term.weight * self.of_term(term, student_CV, teacher, token_ids_C) for term in self.terms)
        return sum(others, start=first)

    def of_term(self, term: LossTerm, student_CV: Tensor, teacher: TeacherOutput | None, token_ids_C: Tensor) -> Tensor:
        """One term without its weight."""
        if term.loss.needs is Knowledge.TOKENS:
            return term.loss.formulas[Knowledge.TOKENS](student_CV, token_ids_C)
        told = Knowledge.ENTRIES if isinstance(teacher, Mapping) else Knowledge.LOGITS
        return term.loss.formulas[told](student_CV, teacher, temperature=self.temperature, **term.parameters)


def build_objective(loss: str | Sequence[LossTerm], *, temperature: float) -> Objective:
    """The objective of a recipe's distill.loss at its temperature."""
    return Objective(loss_terms(loss), temperature)

"""Table of the losses a recipe may name: formulas, parameters, and the knowledge of the teacher that each needs.

A new loss needs a row here, its formula in distill/loss_formulas.py, and a row in docs/train.md. No torch.

Shape suffixes used in this file:
    C = some response tokens, one row each
    V = vocabulary entries
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from architectures.settings import Section
from distill import loss_formulas
from distill.loss_formulas import kept_forward_kl

if TYPE_CHECKING:
    from torch import Tensor

    # Output of a teacher for some rows: logits_CV, or the entries of each row that a cache kept.
    TeacherOutput: TypeAlias = Tensor | Mapping[str, Tensor]

# Logits entries of a chunk of a loss. 2**23 of them, with their probabilities and gradients, are 200 MB. With 2**24
# the peak at 8,192 tokens from 32,000 entries was 0.136 of the plain path's, above the limit of 1/8; time is the same
# (benchmarks/loss.py).
CHUNK_ENTRIES = 2**23
MIN_CHUNK_TOKENS = 256  # below, each pass over the head's weight and its gradient serves too few tokens
GPU_CHUNKS = 4  # chunk multiple on GPUs: on an H200 8,192 tokens took 25 ms from 32,000 entries, and 40.5 with 1
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Formula: TypeAlias = Callable[..., "Tensor"]


class Knowledge(IntEnum):
    """Information about the teacher at a response token."""

    TOKENS = 0  # only the response's own token: no teacher is needed
    ENTRIES = 1  # some entries of its distribution, as in a cache of top_k or samples
    LOGITS = 2  # the full distribution


@dataclass(frozen=True)
class TokenLoss:
    """Loss per response token.

    Attributes:
        formulas: By the knowledge they use. They take the student's logits, then token ids (TOKENS) or the teacher's
            output with `temperature` and the loss's parameters by keyword.
        parameters: Defaults by name.
    """

    formulas: Mapping[Knowledge, Formula]
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def needs(self) -> Knowledge:
        """Minimum knowledge to compute it."""
        return min(self.formulas)


# p is the teacher's distribution, q the student's, alpha the sum of min(p, q).
LOSSES = {
    # KL(p || q)
    "forward_kl": TokenLoss({Knowledge.LOGITS: loss_formulas.forward_kl, Knowledge.ENTRIES: kept_forward_kl}),
    # KL(q || p)
    "reverse_kl": TokenLoss({Knowledge.LOGITS: loss_formulas.reverse_kl}),
    # w KL(p || q) + (1 - w) KL(q || p), with w = forward_weight
    "kl_mixture": TokenLoss({Knowledge.LOGITS: loss_formulas.kl_mixture}, {"forward_weight": 0.9}),
    # beta KL(p || m) + (1 - beta) KL(q || m), with m = beta p + (1 - beta) q
    "jensen_shannon": TokenLoss({Knowledge.LOGITS: loss_formulas.jensen_shannon}, {"beta": 0.5}),
    # KL(p || skew p + (1 - skew) q)
    "skewed_forward_kl": TokenLoss({Knowledge.LOGITS: loss_formulas.skewed_forward_kl}, {"skew": 0.1}),
    # KL(q || skew q + (1 - skew) p)
    "skewed_reverse_kl": TokenLoss({Knowledge.LOGITS: loss_formulas.skewed_reverse_kl}, {"skew": 0.1}),
    # 1 - alpha: a probability, not nats
    "total_variation": TokenLoss({Knowledge.LOGITS: loss_formulas.total_variation}),
    # -log alpha
    "negative_log_acceptance": TokenLoss({Knowledge.LOGITS: loss_formulas.negative_log_acceptance}),
    # w KL(p || q) + (1 - w) (1 - alpha), with w = exp(-decay alpha)
    "lk_hybrid": TokenLoss({Knowledge.LOGITS: loss_formulas.lk_hybrid}, {"decay": 3.0}),
    # -log q of the next token: no teacher is needed
    "cross_entropy": TokenLoss({Knowledge.TOKENS: loss_formulas.cross_entropy}),
}
# Default loss of a recipe: the first that its teacher supports, in order of quality (docs/benchmarks.md).
PREFERRED = ("negative_log_acceptance", "forward_kl", "cross_entropy")

if TYPE_CHECKING:
    LossName: TypeAlias = str
else:
    LossName = Literal[tuple(LOSSES)]


class LossTerm(Section):
    """One loss of a weighted sum, in nats per answer token. A parameter is null in losses that have none."""

    name: LossName = Field(description="A loss of docs/train.md.")
    weight: float = Field(default=1.0, gt=0, description="Weight in the sum.")
    forward_weight: OpenFraction | None = Field(
        default=None, description="Weight of the forward KL in kl_mixture; null is 0.9."
    )
    beta: OpenFraction | None = Field(
        default=None, description="Weight of the teacher in the mixture of jensen_shannon; null is 0.5."
    )
    skew: OpenFraction | None = Field(
        default=None,
        description="Weight of the first distribution in the mixture of a skewed KL; null is 0.1.",
    )
    decay: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Decay of the KL weight with the acceptance rate in lk_hybrid; null is 3."
    )

    @field_validator("forward_weight", "beta", "skew", "decay")
    @classmethod
    def _of_this_loss(cls, value: float | None, info: ValidationInfo) -> float | None:
        name = info.data.get("name")
        if value is not None and name is not None and info.field_name not in LOSSES[name].parameters:
            raise ValueError(f"must be left out of {name}, got {value}: that loss has no {info.field_name}.")
        return value

    @property
    def loss(self) -> TokenLoss:
        return LOSSES[self.name]

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters of the loss, defaults included."""
        given = {name: getattr(self, name) for name in self.loss.parameters}
        return {name: self.loss.parameters[name] if value is None else value for name, value in given.items()}


Loss: TypeAlias = LossName | Annotated[list[LossTerm], Field(min_length=1)]


def loss_terms(loss: str | Sequence[LossTerm]) -> tuple[LossTerm, ...]:
    return (LossTerm(name=loss),) if isinstance(loss, str) else tuple(loss)


@dataclass(frozen=True)
class Objective:
    """Weighted sum of token losses; cross_entropy ignores the temperature."""

    terms: tuple[LossTerm, ...]
    temperature: float

    @property
    def needs_teacher(self) -> bool:
        """True if any term compares with the teacher."""
        return any(term.loss.needs > Knowledge.TOKENS for term in self.terms)

    def __call__(self, student_CV: "Tensor", teacher: "TeacherOutput | None", token_ids_C: "Tensor") -> "Tensor":
        """Compute loss_C, float32; the teacher's output may be None if `needs_teacher` is False."""
        first, *others = (term.weight * self.of_term(term, student_CV, teacher, token_ids_C) for term in self.terms)
        return sum(others, start=first)

    def of_term(
        self, term: LossTerm, student_CV: "Tensor", teacher: "TeacherOutput | None", token_ids_C: "Tensor"
    ) -> "Tensor":
        if term.loss.needs is Knowledge.TOKENS:
            return term.loss.formulas[Knowledge.TOKENS](student_CV, token_ids_C)
        told = Knowledge.ENTRIES if isinstance(teacher, Mapping) else Knowledge.LOGITS
        return term.loss.formulas[told](student_CV, teacher, temperature=self.temperature, **term.parameters)


def build_objective(loss: str | Sequence[LossTerm], *, temperature: float) -> Objective:
    return Objective(loss_terms(loss), temperature)


def chunk_size(vocab_size: int) -> int:
    """Return the tokens per chunk on a CPU; a GPU uses GPU_CHUNKS times this."""
    return max(MIN_CHUNK_TOKENS, CHUNK_ENTRIES // vocab_size)

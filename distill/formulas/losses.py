"""Every loss a recipe may name: its formulas, its options with range and default, and what it needs of a teacher.

The one table of losses, which recipes, checks and training read. A new loss is a class here, its formula in dense.py,
and a row of docs/losses.md. No torch.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import Field

from architectures.files.section import Section
from distill.formulas import dense
from distill.formulas.sparse import kept_forward_kl

if TYPE_CHECKING:
    from torch import Tensor

OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Formula: TypeAlias = Callable[..., "Tensor"]


class Knowledge(IntEnum):
    """What is known of the teacher at an answer token: a teacher tells so much, and a loss needs so much."""

    TOKENS = 0  # the answer's own token alone: no teacher is asked
    ENTRIES = 1  # some entries of its distribution, as a cache of top_k or samples keeps them
    LOGITS = 2  # all of it


class LossTerm(Section):
    """One loss of a weighted sum, in nats per answer token.

    Attributes:
        formulas: By what they are told of the teacher. They take the student's logits, then the tokens' ids; or what
            the teacher says of the rows, `temperature` and the options of the loss by name.
    """

    formulas: ClassVar[Mapping[Knowledge, Formula]]
    name: Any  # a literal of its own in every loss
    weight: float = Field(default=1.0, gt=0, description="Factor in the sum.")

    @property
    def options(self) -> dict[str, float]:
        """Each option of the loss with its value."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in ("name", "weight")}

    @classmethod
    def needs(cls) -> Knowledge:
        """The least it can be computed from."""
        return min(cls.formulas)


Name = Field(description="A loss of docs/losses.md.")


class ForwardKL(LossTerm):
    """KL(p || q), with p the teacher's distribution and q the student's."""

    formulas: ClassVar = {Knowledge.LOGITS: dense.forward_kl, Knowledge.ENTRIES: kept_forward_kl}
    name: Literal["forward_kl"] = Name


class ReverseKL(LossTerm):
    """KL(q || p)."""

    formulas: ClassVar = {Knowledge.LOGITS: dense.reverse_kl}
    name: Literal["reverse_kl"] = Name


class KLMixture(LossTerm):
    """w KL(p || q) + (1 - w) KL(q || p), with w = forward_weight."""

    formulas: ClassVar = {Knowledge.LOGITS: dense.kl_mixture}
    name: Literal["kl_mixture"] = Name
    forward_weight: OpenFraction = Field(default=0.9, description="Share of the forward KL in kl_mixture.")


class JensenShannon(LossTerm):
    """beta KL(p || m) + (1 - beta) KL(q || m), with m = beta p + (1 - beta) q."""

    formulas: ClassVar = {Knowledge.LOGITS: dense.jensen_shannon}
    name: Literal["jensen_shannon"] = Name
    beta: OpenFraction = Field(default=0.5, description="Teacher's share of the mixture in jensen_shannon.")


Skew = Field(default=0.1, description="Share of the first distribution in what it is compared with.")


class SkewedForwardKL(LossTerm):
    """KL(p || skew p + (1 - skew) q)."""

    formulas: ClassVar = {Knowledge.LOGITS: dense.skewed_forward_kl}
    name: Literal["skewed_forward_kl"] = Name
    skew: OpenFraction = Skew


class SkewedReverseKL(LossTerm):
    """KL(q || skew q + (1 - skew) p)."""

    formulas: ClassVar = {Knowledge.LOGITS: dense.skewed_reverse_kl}
    name: Literal["skewed_reverse_kl"] = Name
    skew: OpenFraction = Skew


class TotalVariation(LossTerm):
    """1 - alpha, with alpha the sum of min(p, q); a chance, not nats."""

    formulas: ClassVar = {Knowledge.LOGITS: dense.total_variation}
    name: Literal["total_variation"] = Name


class NegativeLogAcceptance(LossTerm):
    """-log alpha, with alpha the sum of min(p, q)."""

    formulas: ClassVar = {Knowledge.LOGITS: dense.negative_log_acceptance}
    name: Literal["negative_log_acceptance"] = Name


class LKHybrid(LossTerm):
    """w KL(p || q) + (1 - w) (1 - alpha), with alpha the sum of min(p, q) and w = exp(-decay alpha)."""

    formulas: ClassVar = {Knowledge.LOGITS: dense.lk_hybrid}
    name: Literal["lk_hybrid"] = Name
    decay: float = Field(default=3.0, gt=0, description="How fast lk_hybrid turns from KL to acceptance as that grows.")


class CrossEntropy(LossTerm):
    """-log q of the token that was written: the teacher is not asked."""

    formulas: ClassVar = {Knowledge.TOKENS: dense.cross_entropy}
    name: Literal["cross_entropy"] = Name


AnyLoss: TypeAlias = (
    ForwardKL
    | ReverseKL
    | KLMixture
    | JensenShannon
    | SkewedForwardKL
    | SkewedReverseKL
    | TotalVariation
    | NegativeLogAcceptance
    | LKHybrid
    | CrossEntropy
)
LOSSES: dict[str, type[AnyLoss]] = {
    get_args(loss.model_fields["name"].annotation)[0]: loss for loss in get_args(AnyLoss)
}
# What a recipe trains on that names no loss: the first that its teacher serves, the best of docs/losses.md before.
PREFERRED = ("negative_log_acceptance", "forward_kl", "cross_entropy")

if TYPE_CHECKING:
    LossName: TypeAlias = str
else:
    LossName = Literal[tuple(LOSSES)]
Loss = LossName | Annotated[list[Annotated[AnyLoss, Field(discriminator="name")]], Field(min_length=1)]


def loss_term(name: str, **settings: float) -> AnyLoss:
    """A loss by its name, with its weight and options."""
    return LOSSES[name].model_validate({"name": name, **settings})


def loss_terms(loss: str | Sequence[AnyLoss]) -> tuple[AnyLoss, ...]:
    """The terms of a sum; a name alone is one term of weight 1."""
    return (loss_term(loss),) if isinstance(loss, str) else tuple(loss)

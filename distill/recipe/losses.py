"""Recipe keys `distill.loss` and `distill.token_selection`, and how many tokens a chunk of the loss holds. No torch."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from architectures.files.section import Section

LossName = Literal[
    "forward_kl",
    "reverse_kl",
    "kl_mixture",
    "jensen_shannon",
    "skewed_forward_kl",
    "skewed_reverse_kl",
    "total_variation",
    "negative_log_acceptance",
    "lk_hybrid",
    "cross_entropy",
]
OPTIONS = {  # of a loss beyond its weight
    "kl_mixture": ("forward_weight",),
    "jensen_shannon": ("beta",),
    "skewed_forward_kl": ("skew",),
    "skewed_reverse_kl": ("skew",),
    "lk_hybrid": ("decay",),
}
ALL_OPTIONS = ("beta", "skew", "decay", "forward_weight")

# Logits entries of a chunk. 2**23 of them, with their probabilities and gradients, are 200 MB. With 2**24 the peak at
# 8,192 tokens from 32,000 entries was 0.136 of the plain path's, where an eighth is asked for; time is the same
# (bench/loss.py).
CHUNK_ENTRIES = 2**23
MIN_CHUNK_TOKENS = 256  # below, each pass over the head's weight and its gradient serves too few tokens

OpenFraction = Annotated[float, Field(gt=0, lt=1)]


def chunk_size(vocab_size: int) -> int:
    """Tokens whose logits exist at a time while a loss is computed; so many or fewer take the plain path."""
    return max(MIN_CHUNK_TOKENS, CHUNK_ENTRIES // vocab_size)


class LossTerm(Section):
    """One loss of a weighted sum, in nats per answer token; options that it does not have are refused."""

    name: LossName = Field(description="A loss of docs/losses.md.")
    weight: float = Field(default=1.0, gt=0, description="Factor in the sum.")
    beta: OpenFraction | None = Field(
        default=None, description="Teacher's share of the mixture in jensen_shannon; null means 0.5."
    )
    skew: OpenFraction | None = Field(
        default=None, description="Share of the first distribution in what it is compared with; null means 0.1."
    )
    decay: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="How fast lk_hybrid turns from KL to acceptance as that grows; null means 3."
    )
    forward_weight: OpenFraction | None = Field(
        default=None, description="Share of the forward KL in kl_mixture; null means 0.9."
    )

    @model_validator(mode="after")
    def _only_its_own_options(self) -> "LossTerm":
        own = OPTIONS.get(self.name, ())
        for option in ALL_OPTIONS:
            if getattr(self, option) is not None and option not in own:
                has = f"has only {', '.join(own)}" if own else "has none"
                raise ValueError(
                    f"must leave out {option}, got {getattr(self, option)}: {self.name} {has} besides weight."
                )
        return self

    @property
    def options(self) -> dict[str, float]:
        given = {option: getattr(self, option) for option in OPTIONS.get(self.name, ())}
        return {option: value for option, value in given.items() if value is not None}


class TokenSelection(Section):
    """Train on the answer tokens whose KL is furthest above that of a frozen reference draft (AdaSPEC)."""

    fraction: OpenFraction = Field(default=0.4, description="Share of each answer's tokens trained on, at least one.")
    reference: str = Field(
        min_length=1, description="Folder of the reference: a draft of the same target, distilled before."
    )


Loss = LossName | Annotated[list[LossTerm], Field(min_length=1)]


def loss_terms(loss: Loss) -> tuple[LossTerm, ...]:
    """The terms of a sum; a name alone is one term of weight 1."""
    return (LossTerm(name=loss),) if isinstance(loss, str) else tuple(loss)

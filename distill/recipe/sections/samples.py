"""Recipe section `distill.samples`: who writes the answers that the student is trained on. No torch, no Composer."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from architectures.files.section import Section
from architectures.settings.kinds import MaxNewTokens, Temperature
from distill.formulas.losses import AnyLoss, Knowledge
from distill.recipe.sections.teacher import AnyTeacher, Cache, NoTeacher, is_sharded
from distill.recipe.sections.times import NO_RAMP, Ramp, split_time


class SamplesConfig(Section):
    """Who writes the answers that the student is trained on; the live teacher says what it would have written there."""

    source: Literal["teacher", "student", "mix_request", "mix_token"] = Field(
        default="teacher",
        description="teacher takes the answers of section data; student writes each anew while it trains; mix_request "
        "tosses a coin for every sequence, mix_token for every token, of which the teacher writes the others live.",
    )
    probability: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Chance of a mix that the student writes the sequence, or the token; null is 0.5.",
    )
    ramp: Ramp = Field(
        default=NO_RAMP, description="Time over which the probability of a mix rises linearly from begin; 0ba is none."
    )
    begin: float = Field(default=0.0, ge=0, le=1, description="Probability of a mix at the start of ramp.")
    temperature: Temperature | None = Field(
        default=None,
        description="Sampling temperature of what the student writes; 0 is greedy, null is data.temperature.",
    )
    max_new_tokens: MaxNewTokens | None = Field(
        default=None, description="Tokens of a new answer at most; null is data.max_new_tokens."
    )

    @field_validator("probability", "temperature", "max_new_tokens")
    @classmethod
    def _is_read(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("source") == "teacher":
            raise ValueError(
                f"must be left out when distill.samples.source is teacher, got {value}: no answer is written anew."
            )
        return value

    @field_validator("probability")
    @classmethod
    def _of_a_mix(cls, probability: float | None, info: ValidationInfo) -> float | None:
        if probability is not None and info.data.get("source") == "student":
            raise ValueError(
                f"must be left out when distill.samples.source is student, got {probability}: the student writes all. "
                "mix_request writes some, and rises to 1 over a ramp."
            )
        return probability

    @field_validator("ramp")
    @classmethod
    def _of_a_mix_too(cls, ramp: str, info: ValidationInfo) -> str:
        source = info.data.get("source")
        if split_time(ramp)[0] and source in ("teacher", "student"):
            raise ValueError(
                f"must be left out when distill.samples.source is {source}, got {ramp}. A mix has a probability that "
                "can rise: mix_request or mix_token."
            )
        return ramp

    @field_validator("begin")
    @classmethod
    def _rises(cls, begin: float, info: ValidationInfo) -> float:
        ramp, probability = info.data.get("ramp"), info.data.get("probability")
        if begin and ramp is not None and not split_time(ramp)[0]:
            raise ValueError(f"must be left out without distill.samples.ramp, got {begin}. Give the ramp a time.")
        end = 0.5 if probability is None else probability
        if begin > end:
            raise ValueError(f"must be at most distill.samples.probability, got {begin} and {end}. It rises.")
        return begin

    @property
    def writes(self) -> bool:
        """Whether answers are written while the student trains."""
        return self.source != "teacher"

    @property
    def most_probable(self) -> float:
        """The chance that the student writes, once any ramp is over."""
        if self.source in ("teacher", "student"):
            return float(self.source == "student")
        return 0.5 if self.probability is None else self.probability

    def probability_after(self, passed: float) -> float:
        """The chance that the student writes, when so much of the ramp's unit has passed."""
        length, _ = split_time(self.ramp)
        share = min(1.0, passed / length) if length else 1.0
        return self.begin + share * (self.most_probable - self.begin) if share < 1 else self.most_probable


def refuse_unscored(samples: SamplesConfig, train_on: str, teacher: AnyTeacher, terms: tuple[AnyLoss, ...]) -> None:
    """Raise ValueError where nobody could say of fresh text what would have been better."""
    reason = unscored(train_on, teacher, terms) if samples.writes else None
    if reason is not None:
        when, why = reason
        raise ValueError(f"must be left out when {when}, got source {samples.source}: {why}")


def unscored(train_on: str, teacher: AnyTeacher, terms: tuple[AnyLoss, ...]) -> tuple[str, str] | None:
    """When fresh text is not scored, and why and what to do; None where it is."""
    to_live = "Set distill.teacher.source to live."
    if train_on == "text":
        return "distill.train_on is text", "text holds no answers to write anew. Train on answers."
    if isinstance(teacher, Cache):
        why = "a cache holds what the teacher said of the answers that are there and cannot score fresh text."
        return "distill.teacher.source is cache", f"{why} {to_live}"
    if isinstance(teacher, NoTeacher):
        return "distill.teacher.source is none", f"nobody would score what the student writes. {to_live}"
    if all(term.needs() is Knowledge.TOKENS for term in terms):
        why = "the student would learn its own tokens. Take a loss that asks the teacher, alone or beside it."
        return f"distill.loss is {terms[0].name} alone", why
    return None


def refuse_shards(samples: SamplesConfig, teacher: AnyTeacher) -> None:
    """Raise ValueError where a model in shards would write."""
    if samples.source == "mix_token" and is_sharded(teacher):
        raise ValueError(
            "must have source student or mix_request when distill.teacher.parallelism is fsdp2, got mix_token: the "
            "teacher's shards would be gathered for every token, and processes write answers of different lengths. "
            "Or set the teacher's parallelism to replicated."
        )

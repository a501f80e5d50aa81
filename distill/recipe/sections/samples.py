"""Recipe section `distill.samples`: who writes the answers that the student is trained on. No torch, no Composer."""

from typing import Literal

from pydantic import Field

from architectures.files.section import Section
from architectures.settings.kinds import MaxNewTokens, Temperature
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

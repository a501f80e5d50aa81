"""What `verify` and `benchmark` are both told of a target and how it decodes with drafts. Imports torch lazily."""

from typing import TYPE_CHECKING

from pydantic import model_validator

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.kinds import (
    Capture,
    DraftPMin,
    How,
    MinP,
    RepetitionPenalty,
    Seed,
    Target,
    TargetBits,
    TopK,
    TopP,
)
from eval.config import SamplingConfig, sampling_asked
from eval.tasks import PromptWords

if TYPE_CHECKING:
    from eval.decoding.kv_cache import Opener
    from eval.decoding.sampling import Sampling
    from eval.decoding.texts import Speculation


class DecodingFlags(Section):
    """The target, its prompts, how tokens are chosen and proposed, and how the models' steps are run."""

    target: Target
    prompts: PromptWords = ()
    draft_p_min: DraftPMin = 0.0
    top_p: TopP = 1.0
    top_k: TopK = None
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    target_bits: TargetBits = None
    capture: Capture = False
    seed: Seed = 17

    @model_validator(mode="after")
    def _one_way_of_each(self) -> "DecodingFlags":
        if self.target_bits is not None and self.how != "eager":
            raise UserError("--target-bits: packed weights are not captured. Leave out --capture.")
        return self

    @property
    def how(self) -> How:
        """How the models' steps are run."""
        return "captured" if self.capture else "eager"

    @property
    def sampling_config(self) -> SamplingConfig:
        return sampling_asked(self)

    def sampling(self, temperature: float) -> "Sampling":
        """How tokens are chosen at a temperature."""
        from eval.decoding.sampling import Sampling

        return Sampling.of(temperature, self.sampling_config)

    def speculation(self, lookahead: int) -> "Speculation":
        """How a draft is used, with so many tokens a step at most."""
        from eval.decoding.texts import Speculation

        return Speculation(lookahead, draft_p_min=self.draft_p_min)

    def new_opener(self) -> "Opener":
        """One for all calls: what it has captured it keeps."""
        from eval.decoding.cuda_graphs import new_opener

        return new_opener(self.how)

"""Recipe section `data`: prompts, and who answers them. No torch, no Composer."""

from typing import Literal

from pydantic import Field

from architectures.files.section import Section
from architectures.settings.kinds import BatchSize, MaxNewTokens, Temperature
from eval.tasks import PromptSource


class DataConfig(Section):
    """Prompts, and the answers to them. Needs prompts, self_written_prompts, or both.

    Answers to held-out prompts are the target's in any case: how much of a draft it accepts shows on them alone.
    """

    prompts: tuple[PromptSource, ...] = Field(default=(), strict=False, description="Where prompts are read from.")
    answers: Literal["written", "given"] = Field(
        default="written",
        description="Whether the target writes the answers to train on, or the rows of prompts bring them.",
    )
    self_written_prompts: int = Field(default=0, ge=0, description="Prompts the target writes by itself.")
    num_eval_prompts: int = Field(
        default=64, ge=1, description="Prompts held out of training, drawn with the seed, for metrics and scores."
    )
    max_seq_len: int = Field(default=1024, ge=2, description="Tokens of prompt and answer together at most.")
    max_new_tokens: MaxNewTokens = Field(default=256, description="Tokens of an answer at most.")
    temperature: Temperature = Field(default=0.0, description="Sampling temperature of the answers; 0 is greedy.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Probability mass sampled from; 1 keeps everything.")
    batch_size: BatchSize = Field(default=48, description="Prompts answered together.")

    @property
    def shard_size(self) -> int:
        """Prompts per file of responses, the unit a rerun continues from: two batches."""
        return 2 * self.batch_size

    @property
    def longest_answer(self) -> int:
        """Tokens that are learned of one sequence at most."""
        return self.max_seq_len - 1 if self.answers == "given" else self.max_new_tokens

"""The file of a draft's lookup policies, beside its weights: one for each temperature, and what they were tuned on.

No torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, TypeAdapter

from architectures.checkpoints.fingerprint import fingerprint_checkpoint, fingerprint_value
from architectures.errors import UserError
from architectures.files.atomic import write_json
from architectures.files.typed_file import read_typed
from eval.config import SamplingConfig
from eval.proposing.policy import ProposalPolicy

FILE_NAME = "lookup_policy.json"
Schema = Literal["widedraft.lookup/2"]
[SCHEMA] = get_args(Schema)
REMEDY = "Make it again: widedraft lookup."

Count = Annotated[int, Field(ge=1)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class TunedPolicy:
    """A policy at one temperature, as eval.policies.tune.Tuned has it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    policy: ProposalPolicy
    lookahead: Count
    speedup: Ratio
    draft_alone: Ratio
    answers: Count


@dataclass(frozen=True, kw_only=True)
class PolicyFile:
    """What the file holds.

    Attributes:
        target: fingerprint_checkpoint of the model that was drafted for.
        draft: Of the draft.
        policies: One for each temperature.
        prompts: Fingerprints of the token ids that were answered; nothing else is to be scored on these.
        processor: Where steps were timed.
        threads: Of it.
        dtype: Of both models.
        sampling: How the answers were chosen beside their temperature.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    schema: Schema
    target: str
    draft: str
    policies: tuple[TunedPolicy, ...]
    prompts: tuple[str, ...]
    processor: str
    threads: Count
    dtype: str
    sampling: SamplingConfig = SamplingConfig()  # noqa: RUF009  # never changes; files from before there was any

    def at(self, temperature: float, sampling: SamplingConfig, folder: Path) -> TunedPolicy:
        """The policy at a temperature, tuned on answers chosen in this way.

        Raises:
            UserError: If there is none; `folder` is that of the draft.
        """
        if self.sampling.that_count(temperature) != sampling.that_count(temperature):
            raise UserError(
                f"{folder / FILE_NAME}: its policies are for {self.sampling.words_at(temperature)}, not for "
                f"{sampling.words_at(temperature)}. Make others: widedraft lookup, with the flags of this command."
            )
        for policy in self.policies:
            if policy.temperature == temperature:
                return policy
        known = ", ".join(f"{policy.temperature:g}" for policy in self.policies)
        raise UserError(
            f"{folder / FILE_NAME}: has policies for temperature {known}, none for {temperature:g}. Make one: "
            f"widedraft lookup --temperatures {temperature:g}."
        )


FORM = TypeAdapter(PolicyFile)


def prompt_fingerprint(token_ids: Sequence[int]) -> str:
    """By which a prompt is known again."""
    return fingerprint_value(list(token_ids))


def write_policies(policies: PolicyFile, folder: Path) -> Path:
    """Write the file of a draft, whole or not at all."""
    path = folder / FILE_NAME
    exclude = {"sampling"} if policies.sampling == SamplingConfig() else None
    write_json(FORM.dump_python(policies, mode="json", exclude=exclude), path)
    return path


def read_policies(target: Path, draft: Path) -> PolicyFile:
    """The file of a draft.

    Raises:
        UserError: If there is none, it is damaged, or it is of another draft or another target.
    """
    path = draft / FILE_NAME
    if not path.is_file():
        command = f"widedraft lookup --target {target} --draft {draft}"
        raise UserError(f"{draft}: has no {FILE_NAME}. Make it first: {command}.")
    policies = read_typed(path, FORM, REMEDY)
    for name, folder in (("target", target), ("draft", draft)):
        if getattr(policies, name) != fingerprint_checkpoint(folder):
            raise UserError(f"{path}: was tuned for another {name} than {folder}. {REMEDY}")
    return policies


def refuse_tuned_on(policies: PolicyFile, prompts: Sequence[Sequence[int]], path: Path) -> None:
    """Raise UserError if a prompt is one that the policies were tuned on: they would be scored on what they know."""
    known = set(policies.prompts)
    for number, prompt in enumerate(prompts, start=1):
        if prompt_fingerprint(prompt) in known:
            raise UserError(
                f"{path}: was tuned on prompt {number} of these. Score on others (--prompts), or tune on others: "
                "widedraft lookup --prompts."
            )

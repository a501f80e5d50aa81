"""Where figures come from: which models, which prompts, how they were measured, on which machine, by which code."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from architectures.checkpoints.manifest import provenance
from architectures.settings.holding import Placement
from eval.acceptance.estimates import Resampling
from eval.config import SamplingConfig
from eval.records.values import Confidence, Count, Counted, NotNegative, Positive, Some

UNDISTILLED = "undistilled"  # the name of what a draft was before it was distilled, scored beside it


@dataclass(frozen=True, kw_only=True)
class ScoredModel:
    """Which model it was.

    Attributes:
        path: Its folder.
        fingerprint: fingerprint_checkpoint of that.
        head_vocab_size: Ids that it can say, where they are fewer than its vocabulary; else null.
        bits: Of a weight of its linear layers, where they were packed: it is another model than its folder; else null.
        placement: How it was held, where it was not whole on one device; else null.
    """

    path: str
    fingerprint: str
    model_type: str | None = None
    layers: Count
    hidden: Count
    parameters: Count
    dtype: str
    head_vocab_size: Count | None = None
    bits: Count | None = None
    placement: Placement | None = None


@dataclass(frozen=True, kw_only=True)
class DraftModel(ScoredModel):
    """A draft, by its name."""

    draft: str


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What the models ran on."""

    processor: str
    cores: Count
    memory_gib: Positive
    accelerators: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Command, code, versions and machine."""

    argv: tuple[str, ...]
    created: str
    git_commit: str | None
    python: str
    versions: dict[str, str | None]
    hardware: Hardware

    @classmethod
    def of_this_process(cls) -> "Provenance":
        return TypeAdapter(cls).validate_python(provenance())

    @property
    def versions_words(self) -> str:
        versions = (f"{name} {version}" for name, version in self.versions.items() if version)
        return ", ".join([f"Python {self.python}", *versions])

    @property
    def words(self) -> str:
        """Versions, commit and time."""
        return f"{self.versions_words}; commit {self.git_commit}; {self.created}"


@dataclass(frozen=True, kw_only=True)
class MachineState:
    """At one moment; null where the system does not tell."""

    load_average: float
    processor_mhz: tuple[float, float] | None
    throttled_periods: int | None
    gpu: tuple[dict[str, str], ...] | None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the machine did before and after a measurement."""

    before: MachineState
    after: MachineState
    threads: Count

    @property
    def threads_words(self) -> str:
        return f"{self.threads} thread{'s' if self.threads > 1 else ''}"


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """A task, how many of its prompts were taken, and the hash of what they ask."""

    task: str | None
    version: Counted | None
    prompts: Counted
    sha256: str


@dataclass(frozen=True, kw_only=True)
class AnswersRow:
    """The target's answers at one temperature."""

    temperature: NotNegative
    answers: Count
    tokens: Count
    stopped: Counted
    ids_sha256: str


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Which prompts were asked, and how the target answered."""

    given: Counted
    taken: Counted
    too_long: Counted
    scored: Counted
    tasks: tuple[TaskRow, ...]
    sources: Some[str]
    ids_sha256: str
    answers: Some[AnswersRow]

    @property
    def temperatures(self) -> list[float]:
        return [answers.temperature for answers in self.answers]

    def ids_at(self, temperature: float) -> str:
        """Hash of the answers at a temperature that was scored."""
        [row] = [answers for answers in self.answers if answers.temperature == temperature]
        return row.ids_sha256


class Settings(BaseModel):
    """How it was scored: what follows is read; the other keys of recipe section `eval` are kept as they were."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    confidence: Confidence
    num_resamples: Annotated[int, Field(ge=1, le=100_000)]
    seed: Counted
    dtype: str
    device: str
    threads: Count
    intervals: str  # how those of rates were made
    sampling: SamplingConfig = SamplingConfig()

    @property
    def resampling(self) -> Resampling:
        """As intervals were made."""
        return Resampling(self.confidence, self.num_resamples, self.seed)

    def asked(self, key: str) -> Any:
        """Another key of recipe section `eval`."""
        return (self.model_extra or {})[key]


def machine_words(hardware: Hardware, device: str, num_threads: int) -> str:
    """A GPU by its name, or a processor with its threads."""
    if device.startswith("cuda"):
        return f"GPU ({hardware.accelerators[0]})"
    return f"CPU ({hardware.processor}, {num_threads} thread{'s' if num_threads > 1 else ''})"

"""Tokens per second of every way of decoding in the same turns: the file that `widedraft speed --out` writes."""

from dataclasses import asdict, dataclass
from typing import Literal

from eval.acceptance.estimates import Estimate
from eval.config import SamplingConfig
from eval.models.execution import How, how_of
from eval.records.evidence import StepEvidence
from eval.records.grid import Machine
from eval.rounds.round_trace import ModelIdentity
from eval.scorecard_schema import Provenance, only

SCHEMA = "widedraft.speed/1"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Tokens a second, and how many times as fast as the target alone."""

    tokens_per_s: float
    speedup: Estimate


@dataclass(frozen=True, kw_only=True)
class RoundParts:
    """Milliseconds of a mean round: what proposes, the target, and the loop around them."""

    draft: float
    verify: float
    rest: float

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.rest

    def less(self, other: "RoundParts") -> dict[str, float]:
        """What each part takes more than that of another."""
        return {name: value - getattr(other, name) for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class SpeedWay:
    """One way of decoding.

    Attributes:
        way: Its kind (eval.speed.ways).
        draft: Its draft's name; null of a way without one.
        lookahead: 0 of the target alone.
        rounds: Null where rounds are not told; so are the others that are made of them.
        decode: The reading of the prompt left out; null where such seconds are not told.
        whole: With it.
        pass_ms: From one pass of the target to the next.
        predicted: Speed-up of decoding that step times promise for these rounds; null where nothing is predicted.
        predicted_round_ms: The round of a draft by step times.
    """

    way: str
    draft: str | None
    lookahead: int
    tokens: int
    rounds: int | None
    tau: float | None
    decode: Speed | None
    whole: Speed
    pass_ms: float | None
    round_ms: RoundParts | None
    predicted: Estimate | None
    predicted_round_ms: RoundParts | None


@dataclass(frozen=True, kw_only=True)
class BestWay:
    """A way at its fastest lookahead; the interval holds for all that were compared at once."""

    way: str
    draft: str | None
    lookahead: int
    speedup: Estimate
    compared: int


@dataclass(frozen=True, kw_only=True)
class BehindFastest:
    """How many times as fast as another draft the fastest is, in the same turns."""

    way: str
    draft: str
    fastest: Estimate
    compared: int


@dataclass(frozen=True, kw_only=True)
class AgainstLookup:
    """How many times as fast as looking up alone a draft is, each at its best."""

    way: str
    draft: str
    ratio: Estimate
    compared: int


@dataclass(frozen=True, kw_only=True)
class DraftStepsMs:
    """Milliseconds of a draft: one token, two at once."""

    draft: float
    draft_two: float


@dataclass(frozen=True, kw_only=True)
class StepsMs:
    """Milliseconds of the target's steps, which all drafts share, and of each draft's; verification by lookahead."""

    target: float
    verify: dict[str, float]
    drafts: dict[str, DraftStepsMs]


@dataclass(frozen=True, kw_only=True)
class LargestError:
    """Where prediction is farthest from measured decoding, as a share of the measured speed-up."""

    draft: str
    lookahead: int
    share: float


@dataclass(frozen=True, kw_only=True)
class MeasuredWith:
    """How it was measured; `beside`: with n-gram lookup beside each draft too."""

    prompts: int
    max_new_tokens: int
    batch: int
    temperature: float
    repeats: int
    beside: bool
    compiled: bool
    captured: bool
    confidence: float
    seed: int
    sampling: SamplingConfig = SamplingConfig()  # noqa: RUF009  # never changes; files from before there was any
    adaptive: bool = False
    least_confidence: float = 0.0
    least_chance: float = 0.0
    propose_doubted: bool = False

    @property
    def rounds_words(self) -> str:
        """How rounds of drafts end before their lookahead; nothing where they do not."""
        if self.adaptive:
            return ", lookaheads that adapt"
        where = "behind" if self.propose_doubted else "before"
        told = (
            f"{name} below {least:g}"
            for name, least in (("a confidence", self.least_confidence), ("a chance", self.least_chance))
            if least
        )
        words = " or ".join(told)
        return f", rounds that end {where} {words}" if words else ""

    @property
    def how(self) -> How:
        return how_of(compiled=self.compiled, captured=self.captured)


@dataclass(frozen=True, kw_only=True)
class SpeedFigures:
    """What was found of every way."""

    ways: tuple[SpeedWay, ...]
    steps_ms: StepsMs
    groups: int
    intervals: str
    best: tuple[BestWay, ...]
    behind: tuple[BehindFastest, ...]
    against_lookup: tuple[AgainstLookup, ...]
    largest_error: LargestError | None

    def row(self, kind: str, draft: str | None, lookahead: int) -> SpeedWay:
        """The row of a way."""
        return only(self.ways, lambda row: (row.way, row.draft, row.lookahead) == (kind, draft, lookahead))


@dataclass(frozen=True, kw_only=True)
class SpeedFile(SpeedFigures):
    """The file.

    Attributes:
        evidence: What its step times are held against; null in files of before there was any.
    """

    schema: Literal["widedraft.speed/1"] = SCHEMA
    target: ModelIdentity
    drafts: dict[str, ModelIdentity]
    settings: MeasuredWith
    machine: Machine
    provenance: Provenance
    evidence: StepEvidence | None = None

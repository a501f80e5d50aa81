"""Step times on a grid of batches and contexts: the file that `widedraft latency --out` writes, and latency.json."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from architectures.files.typed_file import read_typed
from architectures.shapes.shape import Shape
from eval.acceptance.estimates import Estimate
from eval.acceptance.speedup import StepTimes
from eval.models.execution import How, how_of
from eval.records.evidence import StepEvidence
from eval.scorecard_schema import Provenance, Record, ScoredModel, Some, StepTime, machine_words, only

SCHEMA = "widedraft.latency/2"
TARGET = "target"  # what the model that is drafted for is called among others


class MachineState(Record):
    """At one moment; None where the system does not report it."""

    load_average: float
    processor_mhz: tuple[float, float] | None
    throttled_periods: int | None
    gpu: tuple[dict[str, str], ...] | None


class Machine(Record):
    """What the machine did before and after a measurement."""

    before: MachineState
    after: MachineState
    threads: int

    @property
    def threads_words(self) -> str:
        return f"{self.threads} thread{'s' if self.threads > 1 else ''}"


class GridStep(StepTime):
    """A kind of step.

    Attributes:
        model: Its name.
        tokens: Taken at once.
        prefill: Whether it reads the context.
        each_ms: Every repetition.
    """

    model: str
    tokens: int
    prefill: bool
    each_ms: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GridSteps:
    """Those that were timed in turn with each other, or each by itself."""

    repeats: int
    warm_up_repeats: int
    settled: bool
    steps: Some[GridStep]

    def of(self, model: str, tokens: int) -> GridStep:
        """A step of decoding."""
        return only(self.steps, lambda step: (step.model, step.tokens, step.prefill) == (model, tokens, False))


@dataclass(frozen=True, kw_only=True)
class DepthFit:
    """The straight line through the medians of all shapes; the residual is a share of the time it stands for."""

    constant_ms: Estimate
    layer_ms: Estimate
    hundred_channels_ms: Estimate
    largest_residual: float


@dataclass(frozen=True, kw_only=True)
class SizeEnds:
    """The shallowest, deepest and fastest shape of one size."""

    size: int
    shallowest: str
    deepest: str
    fastest: str
    deepest_over_shallowest: Estimate


@dataclass(frozen=True, kw_only=True)
class DepthAndWidth:
    """What one-token steps of shapes of equal size say of depth and of width."""

    fit: DepthFit
    sizes: tuple[SizeEnds, ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One batch at one context.

    Attributes:
        compiled: Whether steps were compiled.
        captured: Whether they were captured as CUDA graphs.
        together: In turn.
        alone: By themselves.
        floor: Milliseconds that a step of each model takes at least; null where its bytes are not known.
        depth_and_width: Of shapes of equal size.
    """

    batch: int
    context_tokens: int
    compiled: bool
    captured: bool = False
    together: GridSteps
    alone: GridSteps
    floor: dict[str, float | None]
    depth_and_width: DepthAndWidth | None = None

    @property
    def how(self) -> How:
        return how_of(compiled=self.compiled, captured=self.captured)

    def step_times(self, draft: str, lookaheads: Sequence[int]) -> StepTimes:
        """What a prediction needs, in milliseconds."""
        return StepTimes(
            target_s=self.together.of(TARGET, 1).median_ms,
            draft_s=self.together.of(draft, 1).median_ms,
            draft_two_s=self.together.of(draft, 2).median_ms,
            verify_s={lookahead: self.together.of(TARGET, lookahead + 1).median_ms for lookahead in lookaheads},
        )


@dataclass(frozen=True, kw_only=True)
class ShapeRow(Shape):
    """An untrained draft of one of several equal sizes, and what it has more of than the target."""

    name: str
    size: int
    larger: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """What memory moves."""

    copy: float
    read: float


@dataclass(frozen=True, kw_only=True)
class GridFigures:
    """What was measured.

    Attributes:
        lookaheads: Whose verification was timed.
        bandwidth_gb_s: Of the device's memory.
        machine: While times were taken.
        cells: Of the grid.
        shapes: Of equal size, where untrained drafts were measured.
        evidence: What the eager steps of the first cell are held against; null in files of before there was any.
    """

    lookaheads: tuple[int, ...]
    bandwidth_gb_s: Bandwidth
    machine: Machine
    cells: Some[Cell]
    shapes: tuple[ShapeRow, ...] | None = None
    evidence: StepEvidence | None = None


class GridModel(ScoredModel):
    """A model, and where it was."""

    device: str


@dataclass(frozen=True, kw_only=True)
class GridFile(GridFigures):
    """The file; its models by the names that steps have."""

    schema: Literal["widedraft.latency/2"] = SCHEMA
    models: dict[str, GridModel]
    provenance: Provenance

    @property
    def drafts(self) -> list[str]:
        """All models but the target."""
        return [name for name in self.models if name != TARGET]

    def name_of(self, fingerprint: str) -> str | None:
        """What a draft is called here; None if it was not timed."""
        return next((name for name in self.drafts if self.models[name].fingerprint == fingerprint), None)

    @property
    def where(self) -> str:
        """The machine and the number type, in words."""
        target = self.models[TARGET]
        machine = machine_words(self.provenance.hardware, target.device, self.machine.threads)
        return f"a {machine} in {target.dtype}"


def read_grid_file(path: Path) -> GridFile:
    """A grid of step times.

    Raises:
        UserError: If it is no such file; the message names it and the field.
    """
    return read_typed(path, TypeAdapter(GridFile), "Name a file that `widedraft latency --out` wrote.")

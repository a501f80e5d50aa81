"""Step times on a grid of batches and contexts: the file of `widedraft benchmark --grid --out`, and latency.json."""

from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter, model_validator

from architectures.files.reading import read_typed
from architectures.settings.kinds import How
from eval.scorecard_schema import Provenance, Record, ScoredLatency, ScoredModel, Some, StepTime, machine_words

FORMAT = "widedraft.latency/3"
TARGET = "target"  # what the model that is drafted for is called among others


class GridCell(ScoredLatency):
    """One batch at one context.

    Attributes:
        how: How steps were run.
        prefill: The reading of the context, by model; empty where it was not timed.
    """

    how: How
    prefill: dict[str, StepTime] = Field(default_factory=dict)


class GridModel(ScoredModel):
    """A model, and where it was."""

    device: str


class GridFile(Record):
    """The file; its models by the names that steps have."""

    format: Literal["widedraft.latency/3"] = FORMAT
    models: dict[str, GridModel]
    threads: int
    cells: Some[GridCell]
    provenance: Provenance

    @model_validator(mode="after")
    def _every_draft_is_timed(self) -> "GridFile":
        for number, cell in enumerate(self.cells):
            if {steps.draft for steps in cell.drafts} != set(self.drafts):
                raise ValueError(f"cells.{number} has other drafts than models")
        return self

    @property
    def drafts(self) -> list[str]:
        """All models but the target."""
        return [name for name in self.models if name != TARGET]

    @property
    def lookaheads(self) -> list[int]:
        """Those whose verification was timed."""
        return self.cells[0].lookaheads

    def name_of(self, fingerprint: str) -> str | None:
        """What a draft is called here; None if it was not timed."""
        return next((name for name in self.drafts if self.models[name].fingerprint == fingerprint), None)

    @property
    def where(self) -> str:
        """The machine and the dtype, in words."""
        target = self.models[TARGET]
        return f"a {machine_words(self.provenance.hardware, target.device, self.threads)} in {target.dtype}"


def read_grid_file(path: Path) -> GridFile:
    """A grid of step times.

    Raises:
        UserError: If it is no such file; the message names it and the field.
    """
    return read_typed(path, TypeAdapter(GridFile), "Name a file that `widedraft benchmark --grid --out` wrote.")

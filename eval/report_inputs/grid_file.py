"""The file that `widedraft latency --out` writes, as far as a report reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from architectures.errors import UserError
from architectures.files.typed_file import read_typed
from eval.acceptance.speedup import StepTimes
from eval.latency.steps import TARGET
from eval.models.execution import How, how_of
from eval.pages.verdict import machine_words
from eval.report_inputs.cards import Card
from eval.report_inputs.drafts import ScoredDraft, scored_drafts
from eval.scorecard.grid import GRID_NAME

Positive = Annotated[int, Field(ge=1)]
REMEDY = "Name a file that `widedraft latency --out` wrote."


@dataclass(frozen=True)
class Median:
    """Milliseconds."""

    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Step:
    """A kind of step."""

    model: str
    tokens: int
    prefill: bool
    p50_ms: Median


@dataclass(frozen=True)
class Steps:
    """Those that were timed in turn."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Cell:
    """One batch at one context."""

    batch: Positive
    context_tokens: Positive
    compiled: bool
    together: Steps
    captured: bool = False

    @property
    def how(self) -> How:
        return how_of({"compiled": self.compiled, "captured": self.captured})

    @property
    def medians_ms(self) -> dict[tuple[str, int], float]:
        """By model and number of tokens."""
        return {(one.model, one.tokens): one.p50_ms.value for one in self.together.steps if not one.prefill}

    def step_times(self, draft: str, lookaheads: Sequence[int]) -> StepTimes:
        """What a prediction needs, in milliseconds."""
        medians_ms = self.medians_ms
        return StepTimes(
            target_s=medians_ms[TARGET, 1],
            draft_s=medians_ms[draft, 1],
            draft_two_s=medians_ms[draft, 2],
            verify_s={lookahead: medians_ms[TARGET, lookahead + 1] for lookahead in lookaheads},
        )


@dataclass(frozen=True)
class Model:
    """Which model it was."""

    fingerprint: str
    dtype: str
    device: str


@dataclass(frozen=True)
class Threads:
    """Of the processor."""

    threads: int


@dataclass(frozen=True)
class Hardware:
    """What the models ran on."""

    processor: str
    accelerators: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Where the times come from."""

    hardware: Hardware


@dataclass(frozen=True)
class GridFile:
    """The file.

    Attributes:
        models: TARGET and drafts, by the names that steps have.
        lookaheads: Whose verification was timed.
        cells: Of the grid.
        machine: While times were taken.
        provenance: Of the file.
        path: Where it is.
    """

    models: dict[str, Model]
    lookaheads: tuple[Positive, ...]
    cells: Annotated[tuple[Cell, ...], Field(min_length=1)]
    machine: Threads
    provenance: Origin
    path: Path = Path()

    def name_of(self, fingerprint: str) -> str | None:
        """What a draft is called here; None if it was not timed."""
        names = [name for name, model in self.models.items() if name != TARGET and model.fingerprint == fingerprint]
        return names[0] if names else None

    @property
    def where(self) -> str:
        """The machine and the number type, in words."""
        target = self.models[TARGET]
        hardware = asdict(self.provenance.hardware)
        return f"a {machine_words(hardware, target.device, self.machine.threads)} in {target.dtype}"


FILE = TypeAdapter(GridFile)


Grids = Mapping[Path, GridFile]  # by the scorecard they say more of


def grids_of(cards: Sequence[Card], named: Path | None) -> Grids:
    """The file that is named for all scorecards, or what stands beside each of them.

    Raises:
        UserError: As read_grid does.
    """
    drafts = scored_drafts(cards)
    if named is not None:
        return dict.fromkeys((card.path for card in cards), read_grid(named, drafts))
    beside = {card.path: card.path.with_name(GRID_NAME) for card in cards}
    own = {place: [one for one in drafts if one.card.path == place] for place in beside}
    return {place: read_grid(path, own[place]) for place, path in beside.items() if path.is_file()}


def read_grid(path: Path, drafts: Sequence[ScoredDraft]) -> GridFile:
    """The step times of a report's models.

    Args:
        path: The file.
        drafts: Of the report.

    Raises:
        UserError: If it is no such file, lacks a step, or is of another target or of other drafts.
    """
    grid = replace(read_typed(path, FILE, REMEDY), path=path)
    require_steps(grid)
    require_models(grid, drafts)
    return grid


def require_steps(grid: GridFile) -> None:
    """Raise UserError unless every cell has every step."""
    due = [(TARGET, 1), *((TARGET, lookahead + 1) for lookahead in grid.lookaheads)]
    due += [(name, tokens) for name in grid.models if name != TARGET for tokens in (1, 2)]
    for number, cell in enumerate(grid.cells):
        for model, tokens in due:
            if (model, tokens) not in cell.medians_ms:
                raise UserError(f"{grid.path}: cells.{number} has no step of {model} with {tokens} tokens. {REMEDY}")


def require_models(grid: GridFile, drafts: Sequence[ScoredDraft]) -> None:
    """Raise UserError unless the file is of the target and of a draft, at a lookahead that was scored."""
    target = drafts[0].card.record["target"]
    if TARGET not in grid.models or grid.models[TARGET].fingerprint != target["fingerprint"]:
        raise UserError(
            f"{grid.path}: holds no times of the target {target['path']} ({target['fingerprint'][:12]}). "
            "Time that one, and score again if an older widedraft did: it knew models by samples of their weights."
        )
    timed = [one for one in drafts if grid.name_of(one.model["fingerprint"]) is not None]
    if not timed:
        paths = ", ".join(one.model["path"] for one in drafts)
        raise UserError(f"{grid.path}: holds no times of any draft of the report ({paths}). Time these.")
    scored = {entry["lookahead"] for one in timed for entry in one.card.record["acceptance"][0]["lookahead"]}
    if not scored & set(grid.lookaheads):
        raise UserError(
            f"{grid.path}: verification was timed at lookaheads {list(grid.lookaheads)}, and none of them was scored "
            f"({sorted(scored)}). Time those that were."
        )

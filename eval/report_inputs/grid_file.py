"""The files that `widedraft latency --out` writes, as far as they are of a report's models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from architectures.errors import UserError
from eval.records.files import read_grid_file
from eval.records.grid import TARGET, GridFile
from eval.report_inputs.cards import Card
from eval.report_inputs.drafts import ScoredDraft, scored_drafts
from eval.scorecard.grid import GRID_NAME


@dataclass(frozen=True)
class ReadGrid:
    """A grid of step times, and the file it is from."""

    path: Path
    grid: GridFile


Grids = Mapping[Path, ReadGrid]  # by the scorecard they say more of


def grids_of(cards: Sequence[Card], named: Path | None) -> Grids:
    """The file that is named for all scorecards, or what stands beside each of them.

    Raises:
        UserError: As read_grid does.
    """
    drafts = scored_drafts(cards)
    if named is not None:
        return dict.fromkeys((card.path for card in cards), read_grid(named, drafts))
    paths = {card.path: card.path.with_name(GRID_NAME) for card in cards}
    own = {card_path: [draft for draft in drafts if draft.card.path == card_path] for card_path in paths}
    return {card_path: read_grid(path, own[card_path]) for card_path, path in paths.items() if path.is_file()}


def read_grid(path: Path, drafts: Sequence[ScoredDraft]) -> ReadGrid:
    """The step times of a report's models.

    Args:
        path: The file.
        drafts: Of the report.

    Raises:
        UserError: If it is no such file, lacks a step, or is of another target or of other drafts.
    """
    grid = read_grid_file(path)
    require_models(grid, drafts, path)
    return ReadGrid(path, grid)


def require_models(grid: GridFile, drafts: Sequence[ScoredDraft], path: Path) -> None:
    """Raise UserError unless the file is of the target and of a draft, at a lookahead that was scored."""
    target = drafts[0].card.record.target
    if TARGET not in grid.models or grid.models[TARGET].fingerprint != target.fingerprint:
        raise UserError(
            f"{path}: holds no times of the target {target.path} ({target.fingerprint[:12]}). "
            "Time that one, and score again if an older widedraft did: it knew models by samples of their weights."
        )
    timed = [draft for draft in drafts if grid.name_of(draft.model.fingerprint) is not None]
    if not timed:
        paths = ", ".join(draft.model.path for draft in drafts)
        raise UserError(f"{path}: holds no times of any draft of the report ({paths}). Time these.")
    scored = {lookahead for draft in timed for lookahead in draft.card.record.latency.lookaheads}
    if not scored & set(grid.lookaheads):
        raise UserError(
            f"{path}: verification was timed at lookaheads {list(grid.lookaheads)}, and none of them was scored "
            f"({sorted(scored)}). Time those that were."
        )

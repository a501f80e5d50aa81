"""latency.json beside a scorecard: steps of its models at other batches, as `widedraft latency --out` writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers import PreTrainedModel

from eval.acceptance.estimates import Resampling
from eval.config import EvalConfig
from eval.latency.grid import Grid, measure_grid
from eval.latency.memory import lack_of_memory
from eval.records.files import write_record
from eval.records.grid import TARGET, GridFigures, GridFile, GridModel
from eval.records.scorecard import Scorecard
from eval.steps.sequencer import takes_rows

GRID_NAME = "latency.json"


def measure_batches(
    models: Mapping[str, PreTrainedModel], text_ids: Sequence[int], config: EvalConfig, resampling: Resampling
) -> tuple[GridFigures | None, list[str]]:
    """Time the steps of every batch and context that fits.

    Args:
        models: TARGET and the drafts, by name.
        text_ids: What the caches are filled with; as long as the contexts where config names none.
        config: Which batches and contexts, and how often.
        resampling: How intervals are made.

    Returns:
        The figures of the grid, None where nothing is to be timed; and what was left out, with the reason.
    """
    contexts = config.latency_contexts or (len(text_ids),)
    problems = {batch: batch_problem(models, batch, contexts) for batch in config.latency_batch_sizes}
    told = [
        f"Steps at batch {batch} were not timed: {problem}"
        for batch, problem in problems.items()
        if problem is not None
    ]
    batches = [batch for batch, problem in problems.items() if problem is None]
    if not batches:
        return None, told
    repeats = max(2, config.latency_repeats // 4)
    grid = Grid(batches, contexts, spread_lookaheads(config.lookaheads), repeats, prefill=False)
    return measure_grid(models, text_ids, grid, resampling), told


def batch_problem(models: Mapping[str, PreTrainedModel], batch: int, contexts: Sequence[int]) -> str | None:
    """Why a batch cannot be timed at some context; None where it can at all of them."""
    if batch > 1 and not all(takes_rows(model) for model in models.values()):
        return "models of this type are decoded one text at a time here."
    problems = (lack_of_memory(models, batch=batch, context=context) for context in contexts)
    return next((problem for problem in problems if problem is not None), None)


def spread_lookaheads(lookaheads: Sequence[int]) -> list[int]:
    """Both ends and the powers of 2 among them: enough to see at which lookahead a batch is served best."""
    return sorted({min(lookaheads), max(lookaheads), *(each for each in lookaheads if each.bit_count() == 1)})


def write_grid(grid: GridFigures | None, scorecard: Scorecard, out: Path) -> None:
    """Write latency.json in a scorecard's folder, or take away that of an earlier scoring."""
    if grid is None:
        (out / GRID_NAME).unlink(missing_ok=True)
        return
    device, primary = scorecard.settings.device, dict(vars(scorecard.drafts[-1]))
    name = primary.pop("draft")
    models = {
        TARGET: GridModel(**vars(scorecard.target), device=device),
        name: GridModel(**primary, device=device),
    }
    write_record(GridFile(**vars(grid), models=models, provenance=scorecard.provenance), out / GRID_NAME)

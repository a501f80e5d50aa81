"""Step times of candidates that nobody has trained. Imports torch only when it runs."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from distill.choose.shapes.candidates import Candidate
from distill.recipe.recipe import Recipe

if TYPE_CHECKING:
    from eval.acceptance.estimates import Resampling
    from eval.scorecard_schema import ScoredLatency

REPEATS = 20
CONTEXT = 128  # tokens before a step, where none are asked for


class Place(NamedTuple):
    """Where steps are timed: rows decoded together, and tokens before a step."""

    batch: int
    context: int


def places_of(batch_sizes: Sequence[int], contexts: Sequence[int]) -> list[Place]:
    """Every batch with every context, the deciding one first; of none, one text of the usual length."""
    return [Place(*place) for place in product(batch_sizes or [1], contexts or [CONTEXT])]


def measured_steps(
    recipe: Recipe, target: Path, candidates: Sequence[Candidate], places: Sequence[Place]
) -> "list[ScoredLatency]":
    """Step times of the target and of every candidate, which no one trained, as a scorecard holds them; of each place.

    Raises:
        UserError: If the models do not fit into memory, or take one text at a time and larger batches are asked for.
    """
    from eval.checks.built_in import PROMPTS
    from eval.latency import (
        Setting,
        chosen_threads,
        measure_latency,
        repeated,
        require_memory,
        require_rows,
        scored_latency,
        timing_ticks,
        untrained_models,
    )
    from eval.models.loading import load_tokenizer
    from eval.records.grid import TARGET
    from eval.targets.loading import load_target

    config, names = recipe.eval, [candidate.name for candidate in candidates]
    text_ids = [token for prompt in PROMPTS for token in load_tokenizer(target)(prompt)["input_ids"]]
    found = []
    model = load_target(target, dtype=config.dtype, holding=recipe.target.holding)
    with chosen_threads(config.num_threads, lambda: model) as threads:
        drafts = dict(zip(names, untrained_models(model, [candidate.shape for candidate in candidates]), strict=True))
        models = {TARGET: model, **drafts}
        require_rows(models, [each.batch for each in places])
        for place in places:
            require_memory(models, batch=place.batch, context=place.context)
        for batch, context in places:
            latency = measure_latency(
                models,
                Setting(repeated(text_ids, context), batch),
                lookaheads=config.lookaheads,
                repetitions=timing_ticks(REPEATS),
                resampling=resampling_of(recipe),
            )
            scored = scored_latency(latency, batch=batch)
            found.append(replace(scored, evidence=threads.noted(scored.evidence)))
    return found


def resampling_of(recipe: Recipe) -> "Resampling":
    from eval.acceptance.estimates import Resampling

    return Resampling(recipe.eval.confidence, recipe.eval.num_resamples, recipe.seed)

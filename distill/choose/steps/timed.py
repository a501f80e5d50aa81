"""Step times of candidates that nobody has trained. Imports torch only when it runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distill.choose.shapes.candidates import Candidate
from distill.recipe.recipe import Recipe

if TYPE_CHECKING:
    from eval.acceptance.estimates import Resampling
    from eval.records.steps import ScoredLatency

REPEATS = 20


def measured_steps(recipe: Recipe, target: Path, candidates: Sequence[Candidate]) -> "ScoredLatency":
    """Step times of the target and of every candidate, which no one trained, as a scorecard holds them."""
    from distill.expected_time.floors import CONTEXT
    from eval.checks.built_in import PROMPTS
    from eval.latency.grid import repeated
    from eval.latency.machine import torch_threads
    from eval.latency.measure import measure_latency, timing_ticks
    from eval.latency.steps import Setting
    from eval.latency.untrained import untrained_models
    from eval.models.loading import load_model, load_tokenizer
    from eval.scorecard.record import scored_latency

    config, names = recipe.eval, [candidate.name for candidate in candidates]
    text_ids = [token for prompt in PROMPTS for token in load_tokenizer(target)(prompt)["input_ids"]]
    with torch_threads(config.num_threads):
        model = load_model(target, dtype=config.dtype)
        drafts = dict(zip(names, untrained_models(model, [candidate.shape for candidate in candidates]), strict=True))
        latency = measure_latency(
            model,
            drafts,
            Setting(repeated(text_ids, CONTEXT)),
            lookaheads=config.lookaheads,
            repetitions=timing_ticks(REPEATS),
            resampling=resampling_of(recipe),
        )
    return scored_latency(latency)


def resampling_of(recipe: Recipe) -> "Resampling":
    from eval.acceptance.estimates import Resampling

    return Resampling(recipe.eval.confidence, recipe.eval.num_resamples, recipe.seed)

"""What a draft is worth: acceptance on answers it never saw, and its step times beside the target's, in one process."""

from pathlib import Path
from typing import Any

from benchmarks.minutes.cells import Cell
from benchmarks.minutes.inputs import OWN, Scored
from benchmarks.minutes.kept import acceptance_kept, latency_kept
from benchmarks.minutes.setting import LOOKAHEADS, SEED, Setting
from eval.acceptance.estimates import Resampling
from eval.decoding.sampling import Sampling
from eval.latency.machine import torch_threads
from eval.latency.measure import measure_latency, timing_ticks
from eval.latency.steps import Setting as StepSetting
from eval.models.loading import load_model
from eval.scorecard.acceptance_record import acceptance_row
from eval.scorecard.answers import context_of
from eval.scorecard.loaded_models import Pair, replay_drafts
from eval.scorecard.record import scored_latency

EVERY_LOOKAHEAD = range(LOOKAHEADS[0], LOOKAHEADS[1] + 1)
RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=SEED)


def score_draft(setting: Setting, cell: Cell, draft: Path, answers: Scored) -> dict[str, Any]:
    """Acceptance by set and temperature, and step times, as scorecards hold them."""
    with torch_threads(setting.threads):
        pair, acceptance = pair_of(setting, cell, draft), []
        for name, group in answers.items():
            for temperature, written in group.items():
                [replayed] = replay_drafts(pair, written, sampling=Sampling(temperature))
                row = acceptance_row(replayed.scores(EVERY_LOOKAHEAD)[:1], {}, RESAMPLING)
                acceptance.append({"set": name, **acceptance_kept(row)})
        return {"acceptance": acceptance, "latency": measured_latency(setting, pair, answers)}


def pair_of(setting: Setting, cell: Cell, draft: Path) -> Pair:
    """The target with a cell's draft."""
    dtype = setting.shared_recipe().eval.dtype
    return Pair(load_model(setting.target, dtype=dtype), {cell.name: load_model(draft, dtype=dtype)})


def measured_latency(setting: Setting, pair: Pair, answers: Scored) -> dict[str, Any]:
    """Step times of both, as scorecards hold them."""
    latency = measure_latency(
        pair.target,
        pair.drafts,
        StepSetting(context_of(answers[OWN])),
        lookaheads=EVERY_LOOKAHEAD,
        repetitions=timing_ticks(setting.latency_repeats),
        resampling=RESAMPLING,
    )
    return latency_kept(scored_latency(latency))

"""`widedraft eval --checkpoints`: acceptance of every saved checkpoint on a scorecard's responses, by tokens trained.

Checkpoints of a training run have one shape, so they share the scorecard's step times, and only acceptance differs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from architectures.console import Table, TableSection
from architectures.files import read_typed
from architectures.settings import WHOLE, Holding, command_of
from architectures.sharing import ALONE, Share
from eval import intervals
from eval.acceptance_rates import record_responses, replay_drafts
from eval.config import EvalConfig
from eval.decoding.generate import Kind
from eval.decoding.sampling import Sampling
from eval.large_targets import load_target
from eval.machine import share_threads, torch_threads
from eval.models import SavedModel
from eval.prompts import Prompt
from eval.replay import DraftScore
from eval.scorecard import speedup_row
from eval.scorecard_schema import CARD_NAME, Record, read_scorecard, write_record
from eval.scorecard_tables import interval
from eval.speedup import StepTimes

JSON_NAME = "checkpoints.json"
COLUMNS = ("checkpoint", "batches", "tokens", "α", "τ", "behind the best", "predicted speedup")


class Point(Record):
    """One checkpoint: batches and tokens trained; α, τ and predicted speedup at the k of the curve.

    `behind` is the best checkpoint's τ minus this one's on the same prompts; None for the best itself.
    """

    checkpoint: str
    batches: int
    tokens: int
    alpha: intervals.Estimate
    tau: intervals.Estimate
    predicted: float
    behind: intervals.Estimate | None


class Curve(Record):
    """All checkpoints at one temperature in the order they were saved; `best` has the highest predicted speedup."""

    temperature: float
    num_speculative_tokens: int
    best: str
    points: tuple[Point, ...]


class Curves(Record):
    """checkpoints.json; fingerprints of target and draft identify its scorecard."""

    format: Literal["widedraft.checkpoints/2"] = "widedraft.checkpoints/2"
    target: str
    draft: str
    curves: tuple[Curve, ...]


def score_checkpoints(
    target: Path,
    saved: Sequence[SavedModel],
    prompts: Sequence[Prompt],
    config: EvalConfig,
    folder: Path,
    *,
    seed: int,
    generated_by: Kind | None = None,
    holding: Holding = WHOLE,
    share: Share = ALONE,
) -> Curves:
    """Score checkpoints of one training run; write checkpoints.json next to its scorecard.

    Args:
        saved: In the order they were saved; one is in memory at a time.
        prompts: Those of the scorecard, like config, seed, generated_by and holding.
        folder: Directory of the scorecard; the target's responses there are read again.
        share: This process's part of the replays; the first process writes.
    """
    card = read_scorecard(folder / CARD_NAME)
    config = config.model_copy(update={"max_prompt_len": card.settings.max_prompt_len})
    used, temperatures = prompts[: config.num_prompts], config.temperatures
    scores: dict[float, list[DraftScore]] = {temperature: [] for temperature in temperatures}
    with torch_threads(share_threads(share)):
        how = {"seed": seed, "generated_by": generated_by, "holding": holding, "share": share}
        responses = {t: record_responses(target, used, config, folder, temperature=t, **how) for t in temperatures}
        target_model = load_target(target, dtype=config.dtype, holding=holding)
        for number, checkpoint in enumerate(saved, start=1):
            print(f"   {checkpoint.name}, {number} of {len(saved)}", flush=True)
            draft = {checkpoint.name: checkpoint.open()}
            for t, group in responses.items():
                sampling = Sampling.of(t, config.sampling)
                [replayed] = replay_drafts(target_model, draft, group, sampling=sampling, share=share)
                scores[t].append(replayed.scores(config.num_speculative_tokens)[0])
    resampling = intervals.Resampling(intervals.CONFIDENCE, intervals.NUM_RESAMPLES, seed)
    steps = card.latency.step_times(card.primary)
    curves = Curves(
        target=card.target.fingerprint,
        draft=card.drafts[-1].fingerprint,
        curves=tuple(curve(saved, scores[t], steps, resampling) for t in temperatures),
    )
    if share.leads:
        write_record(curves, folder / JSON_NAME)
    return curves


def curve(
    saved: Sequence[SavedModel], scores: Sequence[DraftScore], steps: StepTimes, resampling: intervals.Resampling
) -> Curve:
    """Summarise every checkpoint at one temperature, all at the best one's best number of speculative tokens."""
    forecasts = [speedup_row(score, steps) for score in scores]
    best = max(range(len(saved)), key=lambda index: forecasts[index].predicted)
    num_speculative_tokens = forecasts[best].best_k
    behind = behind_the_best([score.tau_columns(num_speculative_tokens) for score in scores], best, resampling)
    points = [
        Point(
            checkpoint=checkpoint.name,
            batches=checkpoint.batches,
            tokens=checkpoint.tokens,
            alpha=intervals.pooled_ratio(*score.alpha_columns(), resampling),
            tau=intervals.pooled_ratio(*score.tau_columns(num_speculative_tokens), resampling),
            predicted=forecasts[index].at(num_speculative_tokens).predicted,
            behind=behind[index],
        )
        for index, (checkpoint, score) in enumerate(zip(saved, scores, strict=True))
    ]
    return Curve(
        temperature=scores[best].temperature,
        num_speculative_tokens=num_speculative_tokens,
        best=saved[best].name,
        points=tuple(points),
    )


def behind_the_best(
    tau_columns: Sequence[intervals.Columns], best: int, resampling: intervals.Resampling
) -> list[intervals.Estimate | None]:
    """Return the best checkpoint's τ minus that of each; None for the best itself.

    Intervals are simultaneous over all pairs, since the best was picked on the same prompts: whichever comes out best,
    it is reported as ahead by mistake no more often than the confidence allows.
    """
    indices = range(len(tau_columns))
    pairs = [(first, second) for first in indices for second in indices if first != second]
    if not pairs:
        return [None]
    columns = [(tau_columns[first], tau_columns[second]) for first, second in pairs]
    by_pair = dict(zip(pairs, intervals.paired_ratio_differences(columns, resampling), strict=True))
    return [None if index == best else by_pair[best, index] for index in indices]


def read_curves(path: Path) -> Curves:
    """Read checkpoints.json; a UserError names the file and the field."""
    return read_typed(
        path, TypeAdapter(Curves), f"Delete the file, or run {command_of('eval', '--checkpoints')} again."
    )


def curves_page(curves: Curves) -> TableSection:
    return TableSection(
        "Checkpoints on the responses of this scorecard",
        [
            TableSection(
                f"Temperature {each.temperature:g}, k={each.num_speculative_tokens}", [Table(COLUMNS, point_rows(each))]
            )
            for each in curves.curves
        ],
    )


def point_rows(curve: Curve) -> list[tuple[str, ...]]:
    return [
        (
            f"{point.checkpoint} (best)" if point.checkpoint == curve.best else point.checkpoint,
            f"{point.batches:,}",
            f"{point.tokens:,}",
            interval(point.alpha),
            interval(point.tau),
            "–" if point.behind is None else interval(point.behind),
            f"{point.predicted:.3f}x",
        )
        for point in curve.points
    ]

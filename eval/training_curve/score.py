"""Saved checkpoints -> curves: each is replayed along the answers of one scorecard, whose step times serve all of them.

Checkpoints of a training have one shape, so their steps take the same time: only acceptance differs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from architectures.files.atomic import write_text
from architectures.kept import remove_kept
from architectures.pages.markdown import markdown
from architectures.settings.holding import WHOLE, Holding
from architectures.sharing import ALONE, Share
from eval.acceptance.draft_scores import DraftScore
from eval.acceptance.estimates import Columns, Estimate, Resampling, pooled_ratio
from eval.acceptance.kept_replays import Keeping
from eval.acceptance.paired_ratios import paired_ratio_differences
from eval.acceptance.speedup import StepTimes
from eval.answers.writing import Kind
from eval.config import EvalConfig
from eval.decoding.sampling import Sampling
from eval.latency.machine import default_threads
from eval.latency.threads import Threads, threads_of_a_share
from eval.prompts import Prompt
from eval.records.files import CARD_NAME, read_scorecard
from eval.scorecard.answers import Answers, record_answers
from eval.scorecard.loaded_models import Pair, replay_drafts
from eval.scorecard.record import speedup_row
from eval.scorecard.score import REPLAYS_NAME, replay_inputs
from eval.targets.loading import load_target
from eval.training_curve.curves import JSON_NAME, PAGE_NAME, SCHEMA, Curve, Curves, Point, write_curves
from eval.training_curve.page import curves_page


@dataclass(frozen=True)
class Saved:
    """A checkpoint that can be opened.

    Attributes:
        name: Of its file.
        batches: Trained before it was saved.
        tokens: The same in tokens.
        fingerprint: Of its weights, and of what is made of them when it is opened.
        open: Loads it, on the device and in the number type that scoring wants.
    """

    name: str
    batches: int
    tokens: int
    fingerprint: str
    open: Callable[[], PreTrainedModel]


def score_checkpoints(
    target: Path,
    saved: Sequence[Saved],
    prompts: Sequence[Prompt],
    config: EvalConfig,
    folder: Path,
    *,
    seed: int,
    answered_by: Kind | None = None,
    holding: Holding = WHOLE,
    share: Share = ALONE,
) -> Curves:
    """Score checkpoints of one training; write checkpoints.json and checkpoints.md beside the scorecard of its draft.

    Args:
        target: Folder of the model that decides every token.
        saved: In the order they were saved; one is in memory at a time.
        prompts: Those of the scorecard.
        config: How it was scored.
        folder: Of the scorecard; the target's answers there are read again.
        seed: Of the scorecard.
        answered_by: What wrote the answers of the scorecard.
        holding: How the target is held.
        share: This process's part of the replays; the first process writes.
    """
    card = read_scorecard(folder / CARD_NAME)
    taken, temperatures = prompts[: config.num_prompts], config.temperatures
    threads = card.settings.threads if config.num_threads == "auto" else config.num_threads
    with threads_of_a_share(Threads(threads or default_threads()), share):
        how = {"seed": seed, "answered_by": answered_by, "holding": holding, "share": share}
        answers = {t: record_answers(target, taken, config, folder, temperature=t, **how) for t in temperatures}
        whole = load_target(target, dtype=config.dtype, holding=holding)

        def keeping(checkpoint: Saved) -> Keeping:
            made_by = {checkpoint.name: checkpoint.fingerprint}
            return Keeping(folder / REPLAYS_NAME / checkpoint.name, replay_inputs(target, made_by, config, holding))

        scores = replay_all(whole, saved, answers, config, share=share, keeping=keeping)
    resampling = Resampling(config.confidence, config.num_resamples, seed)
    draft = card.drafts[-1]
    steps = card.latency.step_times(draft.draft)
    curves = Curves(
        SCHEMA,
        card.target.fingerprint,
        draft.fingerprint,
        tuple(curve(saved, scores[t], steps, resampling) for t in temperatures),
    )
    if share.leads:
        write_text(f"{markdown(curves_page(curves))}\n", folder / PAGE_NAME)
        write_curves(curves, folder / JSON_NAME)
        remove_kept(folder / REPLAYS_NAME)
    return curves


def replay_all(
    target: PreTrainedModel,
    saved: Sequence[Saved],
    answers: Mapping[float, Answers],
    config: EvalConfig,
    *,
    share: Share,
    keeping: Callable[[Saved], Keeping],
) -> dict[float, list[DraftScore]]:
    """Scores of every checkpoint by temperature; keeping says where the replays of one are kept meanwhile."""
    scores: dict[float, list[DraftScore]] = {temperature: [] for temperature in answers}
    for number, checkpoint in enumerate(saved, start=1):
        print(f"   {checkpoint.name}, {number} of {len(saved)}", flush=True)
        pair = Pair(target, {checkpoint.name: checkpoint.open()})
        kept_in = keeping(checkpoint)
        for temperature, written in answers.items():
            kept, sampling = kept_in.of(f"T{temperature:g}", written.traces), Sampling.of(temperature, config.sampling)
            [replayed] = replay_drafts(pair, written, sampling=sampling, share=share, kept=kept)
            scores[temperature].append(replayed.scores(config.lookaheads)[0])
    return scores


def curve(saved: Sequence[Saved], scores: Sequence[DraftScore], steps: StepTimes, resampling: Resampling) -> Curve:
    """Every checkpoint at one temperature, all at the lookahead at which the best promises most."""
    forecasts = [speedup_row(score, steps, None) for score in scores]
    best = max(range(len(saved)), key=lambda index: forecasts[index].predicted)
    lookahead = forecasts[best].best_lookahead
    behind = behind_the_best([score.tau_columns(lookahead) for score in scores], best, resampling)
    points = []
    for index, (checkpoint, score) in enumerate(zip(saved, scores, strict=True)):
        columns = score.tau_columns(lookahead)
        predicted = forecasts[index].at(lookahead).predicted
        alpha, tau = (pooled_ratio(*each, resampling) for each in (score.alpha_columns(), columns))
        points.append(
            Point(checkpoint.name, checkpoint.batches, checkpoint.tokens, alpha, tau, predicted, behind[index])
        )
    return Curve(scores[best].temperature, lookahead, saved[best].name, tuple(points))


def behind_the_best(tau_columns: Sequence[Columns], best: int, resampling: Resampling) -> list[Estimate | None]:
    """The best's tau less that of each, None of the best itself; it was picked on the same prompts.

    Intervals hold for every two checkpoints together, so that whichever comes out best, it is no more often wrongly
    said to be ahead than the confidence allows.
    """
    indices = range(len(tau_columns))
    pairs = [(first, second) for first in indices for second in indices if first != second]
    differences = (
        paired_ratio_differences([(tau_columns[first], tau_columns[second]) for first, second in pairs], resampling)
        if pairs
        else []
    )
    by_pair: dict[tuple[int, int], Estimate] = dict(zip(pairs, differences, strict=True))
    return [None if index == best else by_pair[best, index] for index in indices]

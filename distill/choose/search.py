"""`widedraft choose`: time candidate shapes, train them briefly, continue the better half, write the winner's recipe.

Training runs are in <run>/choose/<length>/<name> and use the responses of the run. A longer one continues from the
checkpoint of a shorter one, by links: the learning rate rises again to the recipe's schedule for the longer run, and
decays to its end there. Imports torch only when it runs.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from architectures.console import Table, terminal
from architectures.errors import UserError
from architectures.files import write_json
from architectures.hub import read_config
from architectures.manifest import fingerprint_checkpoint
from architectures.requested_shape import SIZES
from architectures.shapes import Shape
from architectures.sharing import ALONE
from distill import pipeline
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.choose.candidates import FACTOR, Candidate, ChooseSettings, LeftOut, candidates_of, trials_folder
from distill.recipe.recipe import Recipe, load_recipe, save_recipe
from distill.recipe.sections import split_time
from distill.run import ARTIFACTS, RECIPE_NAME, Artifact, Run, share_responses, source_folder, with_imported_target
from distill.stage_inputs import sources_as_input
from eval.speedup import Prospect, Ranked, drawn_times, prospect, ranking, step_times

if TYPE_CHECKING:
    from eval.intervals import Resampling
    from eval.scorecard_schema import Scorecard, ScoredLatency

REPEATS = 20  # of timed steps
SURE = 0.975  # share of draws of the step times
RIVAL_SHARE = 0.025  # of the draws, won by a rival: one of two equal drafts wins fewer in 5 % of runs
RECORD_NAME = "choice.json"


def choose(run: Run, settings: ChooseSettings) -> None:
    """Print step times and rankings, and write <run>/choose/choice.json and the winner's recipe."""
    recipe, share, (path, *overrides) = run.recipe, run.share, run.training_words
    if settings.out is not None and (settings.out.is_dir() or settings.out.resolve() == Path(path).resolve()):
        raise UserError(f"--out {settings.out}: is a directory, or the input recipe. Choose another file.")
    share.lead(run.begin)

    # Candidates, as shapes only.
    short = short_run(recipe, settings.duration)
    own = [word for word in overrides if word.partition("=")[0] not in short]
    trial = load_recipe(path, [*own, *(f"{key}={value}" for key, value in short.items())])
    folders = (source_folder(trial) or run.target, run.target)
    source, target = (Shape.from_config(read_config(each), where=str(each / "config.json")) for each in folders)
    candidates, left_out = candidates_of(trial, replace(source, vocab=target.vocab), settings)

    # Step times with random weights; shapes that no training can make faster are out.
    latency = share.lead(lambda: measured_steps(recipe, run.target, candidates, settings))
    prospects = {name: prospect(steps, latency.batch) for name, steps in step_times(latency).items()}
    kept, hopeless = worth_training(candidates, latency, prospects, resampling_of(recipe))
    left_out += hopeless
    print_steps(candidates, prospects, latency, left_out)
    found: dict[str, list[Ranked]] = {}
    record = partial(write_record, run, candidates, left_out, found)
    share.lead(record)
    if settings.untrained or not kept:
        return

    # Short training runs of all candidates, longer ones of those still in play.
    pipeline.timed("generate", lambda: pipeline.generate_stage(run))
    pipeline.cache_if_configured(run)
    is_placed = {"batch_size", "context"} & settings.model_fields_set
    earlier: str | None = None
    for length in settings.lengths:
        drafts = train_candidates(run, kept, length, earlier)
        card = score_candidates(run, drafts, length)
        rows = card.rows_at(card.temperatures[0])
        found[length] = ranking(rows, latency if is_placed else card.latency, resampling_of(recipe))
        print_ranking(found[length], length)
        names = {each.draft for each in in_play(found[length])}
        kept, earlier = [each for each in kept if each.name in names], length
        share.lead(record)
        if len(kept) == 1:
            break

    # The winner's recipe.
    if share.leads:
        [winner] = [each for each in candidates if each.name == found[earlier or ""][0].draft]
        run_name, out = f"{recipe.run_name}-{winner.name}", settings.out or trials_folder(run) / RECIPE_NAME
        run_dir = str(Path(recipe.run_dir).with_name(run_name))
        changes = {"architecture": winner.recipe.architecture, "run_name": run_name, "run_dir": run_dir}
        save_recipe(recipe.model_copy(update=changes), out)
        print(f"\n{out}: the recipe of {winner.name}. Next: widedraft run {out}")


def short_run(recipe: Recipe, duration: str) -> dict[str, str]:
    """Return the settings of a short training run, by their keys.

    The warm-up is longer than the default: after one of 6 batches in 120, the loss of a two-layer draft tripled at a
    learning rate that suits the whole training run.
    """
    settings = {"max_duration": duration, "eval_interval": "1dur", "save_interval": "1dur"}
    if split_time(recipe.distill.scheduler.t_warmup)[0] > 0:
        settings["scheduler.t_warmup"] = "0.25dur"
    return {f"distill.{key}": value for key, value in settings.items()}


# --- step times ----------------------------------------------------------------------------------------------------


def measured_steps(
    recipe: Recipe, target: Path, candidates: Sequence[Candidate], settings: ChooseSettings
) -> "ScoredLatency":
    """Measure step times of the target and of every candidate with random weights, interleaved.

    Raises:
        UserError: If the models do not fit into memory, or do not support the batch size.
    """
    from eval.large_targets import load_target
    from eval.latency import Setting, measure_latency, repeated, require_memory, require_rows, untrained_models
    from eval.machine import torch_threads
    from eval.models import load_tokenizer
    from eval.pair import PROMPTS
    from eval.scorecard_schema import TARGET

    config, names = recipe.eval, [candidate.name for candidate in candidates]
    tokenizer = load_tokenizer(target)
    text_ids = [token for prompt in PROMPTS for token in tokenizer(prompt)["input_ids"]]
    model = load_target(target, dtype=config.dtype, holding=recipe.target.holding)
    with torch_threads(None):
        drafts = dict(zip(names, untrained_models(model, [candidate.shape for candidate in candidates]), strict=True))
        models = {TARGET: model, **drafts}
        require_rows(models, [settings.batch_size])
        require_memory(models, batch=settings.batch_size, context=settings.context)
        return measure_latency(
            models,
            Setting(repeated(text_ids, settings.context), settings.batch_size),
            ks=config.num_speculative_tokens,
            repeats=REPEATS,
            resampling=resampling_of(recipe),
        )


def resampling_of(recipe: Recipe) -> "Resampling":
    from eval.intervals import CONFIDENCE, NUM_RESAMPLES, Resampling

    return Resampling(CONFIDENCE, NUM_RESAMPLES, recipe.seed)


def worth_training(
    candidates: Sequence[Candidate],
    latency: "ScoredLatency",
    prospects: Mapping[str, Prospect],
    resampling: "Resampling",
) -> tuple[list[Candidate], list[LeftOut]]:
    """Divide candidates into those that training could make faster than plain decoding, and the rest.

    A shape is out if it would not pay off even at an acceptance rate of 1; or if a shape at least as large in every
    dimension has no slower steps in 39 of 40 draws of the times: the smaller one would win only with a higher
    acceptance rate.
    """
    hopeless = [name for name, each in prospects.items() if each.least_alpha is None]
    out = [LeftOut(name, "no acceptance rate gives a speedup") for name in hopeless]
    kept = [each for each in candidates if each.name not in hopeless]
    steps = {
        each.name: np.array([(one.draft_s, one.draft_two_s) for one in drawn_times(latency, each.name, resampling)])
        for each in kept
    }
    for small in tuple(kept):
        better = [
            each
            for each in kept
            if each.shape != small.shape
            and all(getattr(each.shape, part) >= getattr(small.shape, part) for part in (*SIZES, "head_rows"))
            and float((steps[each.name] <= steps[small.name]).all(axis=1).mean()) >= SURE
        ]
        if better:
            best = max(better, key=lambda each: each.shape.parameters())
            out.append(LeftOut(small.name, f"{best.name} is at least as large in every size and no slower"))
    names = {each.candidate for each in out}
    return [each for each in kept if each.name not in names], out


# --- training runs -------------------------------------------------------------------------------------------------


def train_candidates(
    run: Run, candidates: Sequence[Candidate], length: str, earlier: str | None = None
) -> dict[str, Path]:
    """Train the candidates, skipping finished runs; return the draft directory of each, by name.

    Args:
        length: Of the training runs, from their start.
        earlier: Length of the runs that these continue; None to begin.
    """
    # All processes prune each candidate: importance scores of one are reused for the rest.
    for candidate in candidates:
        trial = trial_run(run, candidate, length)
        with pipeline.owned_by_the_first(trial):
            run.share.lead(partial(share_responses, run, trial))
            if earlier is not None:
                run.share.lead(partial(go_on_from, trial_run(run, candidate, earlier), trial))
            pipeline.timed(f"prune {candidate.name}", partial(pipeline.prune_stage, trial))
    # Each process trains some candidates, unless one device cannot hold a candidate.
    together = trained_together(run)
    mine = candidates if together else run.share.mine(candidates)
    for number, candidate in enumerate(mine, start=1):
        print(f"== {candidate.name} for {length}, {number} of {len(mine)}{run.share.words}", flush=True)
        trial = trial_run(run, candidate, length)
        trial = trial if together else replace(trial, share=ALONE)
        with pipeline.owned_by_the_first(trial):
            pipeline.timed("distill", partial(pipeline.distill_stage, trial))
    run.share.meet()
    return {each.name: trial_run(run, each, length).draft.path for each in candidates}


def trained_together(run: Run) -> bool:
    return run.recipe.distill.parallelism != "ddp" or run.recipe.distill.teacher.is_sharded


def trial_run(run: Run, candidate: Candidate, length: str) -> Run:
    """Return the run of a candidate for one length, with the imported target and the scores of the whole run."""
    recipe = candidate.recipe
    place = Path(recipe.run_dir)
    changes = {
        "run_dir": str(place.parent / length / place.name),
        "architecture": recipe.architecture.model_copy(update={"scores": str(run.scores.path)}),
        "distill": recipe.distill.model_copy(update={"max_duration": length}),
    }
    return Run.of(with_imported_target(recipe.model_copy(update=changes), run), run.share)


def go_on_from(earlier: Run, later: Run) -> None:
    """Link the checkpoints of a shorter training run into one that has not begun."""
    if later.checkpoints.is_finished:
        return
    link(earlier.init.path, later.init.path)
    saved = earlier.checkpoints.path
    for path in sorted({*saved.glob("*.pt"), *find_checkpoints(saved)}):  # also the links to the best and latest
        linked = later.checkpoints.path / path.name
        if path.is_symlink():
            linked.parent.mkdir(parents=True, exist_ok=True)
            linked.unlink(missing_ok=True)
            linked.symlink_to(path.readlink())
        else:
            link(path, linked)


def link(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink() and not place.exists():
        place.symlink_to(os.path.relpath(path, place.parent))


def score_candidates(run: Run, drafts: Mapping[str, Path], length: str) -> "Scorecard":
    """Score all drafts of one length on the same prompts, with interleaved step times; reuse a current scorecard."""
    from eval.engines.external_generate import responses_by
    from eval.scorecard import score_drafts
    from eval.scorecard_schema import CARD_NAME, read_scorecard

    # Without measurements that a ranking does not use.
    config = run.recipe.eval.model_copy(update={"latency_batch_sizes": (), "wall_clock_prompts": 1})
    share, seed = run.share, run.recipe.seed
    share.lead(run.begin)
    scored = Artifact(trials_folder(run) / length / "eval", ARTIFACTS["eval"])
    inputs: dict[str, Any] = {
        "target": fingerprint_checkpoint(run.target),
        **{f"draft {name}": fingerprint_checkpoint(folder) for name, folder in drafts.items()},
        "eval": config.model_dump(mode="json"),
        "prompts": sources_as_input(config.tasks) if config.tasks else run.data.inputs,
        "seed": str(seed),
    }
    if not share.lead(lambda: scored.is_current(inputs)):
        # The scorecards of all lengths share the target's responses.
        responses = trials_folder(run) / "responses"
        if share.leads:
            responses.mkdir(parents=True, exist_ok=True)
            link(responses, scored.path / responses.name)
        share.meet()
        with responses_by(run.recipe.generate) as kind:
            how = {"seed": seed, "generated_by": kind, "holding": run.recipe.target.holding, "share": share}
            score_drafts(run.target, drafts, pipeline.eval_prompts(run), config, scored.path, **how)
        share.lead(lambda: run.record(scored, inputs))
    return read_scorecard(scored.path / CARD_NAME)


def in_play(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Return the candidates that continue training, fastest first: the better half, and all that may be the fastest.

    Successive halving (arXiv 1502.07943) keeps only the better half; paired draws of prompts and times identify
    further rivals.
    """
    better = math.ceil(len(ranked) / FACTOR)
    return [each for place, each in enumerate(ranked) if place < better or is_rival(each)]


def is_rival(ranked: Ranked) -> bool:
    return ranked.interval is None or ranked.first_share >= RIVAL_SHARE


# --- output --------------------------------------------------------------------------------------------------------


def print_steps(
    candidates: Sequence[Candidate],
    prospects: Mapping[str, Prospect],
    latency: "ScoredLatency",
    left_out: Sequence[LeftOut],
) -> None:
    rows = []
    for each in candidates:
        found = prospects[each.name]
        needed = (
            "none" if found.least_alpha is None else f"{found.least_alpha:.2f} (k = {found.num_speculative_tokens})"
        )
        size, ms = f"{each.shape.parameters() / 1e6:.1f}M", f"{latency.of(each.name).one_token.median_ms:.2f}"
        shape = f"{each.shape.layers} x {each.shape.hidden}"
        rows.append((each.name, shape, size, ms, f"{found.cost_ratio:.3f}", f"{found.most:.2f}x", needed))
    columns = ("candidate", "layers x hidden", "parameters", "ms/step", "cost ratio", "max speedup", "break-even alpha")
    title = f"Step times with random weights: batch {latency.batch}, context {latency.context_tokens}"
    tables = [Table(columns, rows, title)]
    if left_out:
        tables.append(Table(("left out", "why"), [(each.candidate, each.reason) for each in left_out]))
    print(terminal(*tables), flush=True)


def print_ranking(ranked: Sequence[Ranked], length: str) -> None:
    from eval.scorecard_tables import OWN_LOOP, with_bounds

    playing = {each.draft for each in in_play(ranked)}
    rows = []
    for each in ranked:
        speed = with_bounds(each.speedup, each.interval, 2, "x")
        state = "in play" if each.draft in playing else "out"
        figures = (each.num_speculative_tokens, speed, f"{each.tokens_per_s:.1f}", f"{each.first_share:.0%}")
        rows.append((each.draft, *figures, state))
    columns = ("candidate", "k", "predicted speedup", "tokens/s", "fastest in draws", "")
    print(terminal(Table(columns, rows, f"After {length} of training"), OWN_LOOP), flush=True)


def write_record(
    run: Run, candidates: Sequence[Candidate], left_out: Sequence[LeftOut], found: Mapping[str, Sequence[Ranked]]
) -> None:
    folder = trials_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "run_name": run.recipe.run_name,
        "candidates": {each.name: {"parameters": each.shape.parameters(), **asdict(each.shape)} for each in candidates},
        "left_out": [asdict(each) for each in left_out],
        "rankings": {length: [asdict(each) for each in ranked] for length, ranked in found.items()},
    }
    write_json(record, folder / RECORD_NAME)

"""`widedraft choose`: what it does. Imports torch only when it runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.pages.blocks import Block
from architectures.pages.markdown import markdown
from architectures.sharing import ALONE, Share
from distill.choose.ranked.page import left_out_page, prospects_page, rung_page, steps_blocks
from distill.choose.ranked.record import Choice, timed_candidates, write_choice
from distill.choose.ranked.vocabulary_page import ranked_by_answers, vocabulary_page
from distill.choose.shapes.asked import shapes_in
from distill.choose.shapes.candidates import Asked, Candidate, trials_folder
from distill.choose.shapes.given_alphas import TakenAlpha, alphas_of, require_ids, scaled_sentences
from distill.choose.shapes.settings import ChooseSettings
from distill.choose.steps.pruned import Bounds, Pruned, pruned
from distill.choose.steps.timed import measured_steps, places_of, resampling_of
from distill.choose.trainings.rungs import Cell, Rung, rungs
from distill.recipe.recipe import Recipe, load_recipe, save_recipe
from distill.run.run import RECIPE_NAME, Run

if TYPE_CHECKING:
    from distill.vocabulary.coverage import IdCounts
    from eval.scorecard_schema import ScoredLatency

TRIAL = (
    "distill.eval_interval=1dur",
    "distill.save_interval=1dur",
    "distill.eval_first=false",
    "distill.autoresume=true",
)


@dataclass(frozen=True)
class Timed:
    """What is known before any training.

    Attributes:
        asked: Shapes that were asked for.
        steps: Their step times at every place; the first decides.
        pruned: What these leave.
    """

    asked: Asked
    steps: "Sequence[ScoredLatency]"
    pruned: Pruned


def choose(path: Path, overrides: Sequence[str], settings: ChooseSettings, share: Share = ALONE) -> None:
    """Print what was found, and write the recipe of the winner, and choice.json.

    Args:
        path: A recipe.
        overrides: Its key=value words.
        settings: Which shapes, and how they are ranked.
        share: This process's part of what is made and trained; the first process times steps and writes.
    """
    require_file(settings.out, path)
    recipe = load_recipe(path, overrides)
    trial = load_recipe(path, [*overrides, f"distill.max_duration={settings.duration}", *TRIAL])
    run = Run.of(recipe, share)
    share.lead(run.begin)
    asked = shapes_in(run.target, trial, settings.wanted)
    id_counts = id_counts_for(recipe, asked.candidates, run.target)
    alphas = alphas_of(settings.alphas, asked.candidates, id_counts) if settings.alphas else {}
    timed = share.lead(lambda: timed_shapes(run, asked, settings))
    tell_prospects(timed, id_counts)
    found: list[Rung] = []
    if not settings.untrained and timed.pruned.kept:
        for rung in ranked_as_given(recipe, timed, alphas) if alphas else trained(run, timed, settings):
            found.append(rung)
            tell(*rung_page(rung))
            share.lead(lambda: write_choice(choice_of(recipe, timed, found, None), trials_folder(run)))
        tell_coverage(run, timed, id_counts)
    winner = found[-1].ranked[0].draft if found else None
    share.lead(lambda: write_choice(choice_of(recipe, timed, found, winner), trials_folder(run)))
    if winner is not None and share.leads:
        out = settings.out or trials_folder(run) / RECIPE_NAME
        save_recipe(chosen_recipe(recipe, timed.pruned.kept, winner), out)
        print(f"\n{out}: the recipe of {winner}. Next: widedraft run {out}")


def require_file(out: Path | None, path: Path) -> None:
    """Raise UserError unless the winner's recipe can be written there."""
    if out is not None and out.is_dir():
        raise UserError(f"--out {out}: is a folder. Name a file in it.")
    if out is not None and out.resolve() == path.resolve():
        raise UserError(f"--out {out}: is the recipe that is read. Name another file.")


def id_counts_for(recipe: Recipe, candidates: Sequence[Candidate], target: Path) -> "IdCounts | None":
    """Of the run's answers; None where there are none, or no candidate outputs what is most frequent in them.

    Raises:
        UserError: If a candidate's ids cannot be had.
    """
    from distill.vocabulary.coverage import id_counts_of_answers
    from distill.vocabulary.output_ids import tokens_in

    if all(candidate.recipe.architecture.vocabulary is None for candidate in candidates):
        return None
    tokens = tokens_in(target, candidates[0].shape.vocab)
    require_ids(candidates, target, tokens)
    return id_counts_of_answers(recipe, tokens) if ranked_by_answers(candidates) else None


def timed_shapes(run: Run, asked: Asked, settings: ChooseSettings) -> Timed:
    """Step times of all that were asked for, and who is left."""
    recipe, candidates = run.recipe, asked.candidates
    steps = measured_steps(recipe, run.target, candidates, places_of(settings.batch_sizes, settings.contexts))
    by_time = settings.widest and settings.most_milliseconds is not None
    bounds = Bounds(settings.most_milliseconds, by_time, by_size=not settings.alphas)
    return Timed(asked, steps, pruned(candidates, steps, bounds, resampling_of(recipe)))


def tell_prospects(timed: Timed, id_counts: "IdCounts | None") -> None:
    """Print what step times say."""
    candidates, prospects = timed.asked.candidates, timed.pruned.prospects
    left_out = [*timed.asked.left_out, *timed.pruned.left_out]
    tell(
        *(block for latency in timed.steps for block in steps_blocks(latency.evidence)),
        *prospects_page(candidates, prospects, timed.steps),
        *vocabulary_page(candidates, prospects, id_counts),
        *left_out_page(left_out, len(left_out) + len(timed.pruned.kept)),
    )


def tell_coverage(run: Run, timed: Timed, id_counts: "IdCounts | None") -> None:
    """Print what ids cover where only the answers of these trainings could say it."""
    candidates = timed.asked.candidates
    if id_counts is None and (written := id_counts_for(run.recipe, candidates, run.target)) is not None:
        tell(*vocabulary_page(candidates, timed.pruned.prospects, written))


def tell(*blocks: Block) -> None:
    """Print a page, and wait for nothing."""
    print(markdown(*blocks, level=2), flush=True)


def trained(run: Run, timed: Timed, settings: ChooseSettings) -> Iterator[Rung]:
    """Candidates by what they learn; at the places that were asked for, else at that of the scorecards."""
    is_asked = settings.batch_sizes or settings.contexts
    yield from rungs(run, timed.pruned.kept, settings.durations, timed.steps if is_asked else ())


def ranked_as_given(recipe: Recipe, timed: Timed, alphas: Mapping[str, TakenAlpha]) -> Iterator[Rung]:
    """Candidates by the acceptance that was given."""
    from eval.speedup import ranking_of_alphas

    taken = {candidate.name: alphas[candidate.name] for candidate in timed.pruned.kept}
    by_name, resampling = {name: each.alpha for name, each in taken.items()}, resampling_of(recipe)
    tell(*scaled_sentences(taken))
    yield Rung(
        None,
        tuple(
            Cell(
                None,
                latency.batch,
                latency.context_tokens,
                tuple(ranking_of_alphas(latency, by_name, resampling)),
                latency.evidence,
            )
            for latency in timed.steps
        ),
    )


def choice_of(recipe: Recipe, timed: Timed, found: Sequence[Rung], winner: str | None) -> Choice:
    """What choice.json holds."""
    from eval.scorecard_schema import Provenance

    return Choice(
        run_name=recipe.run_name,
        candidates=timed_candidates(timed.asked.candidates, timed.pruned.prospects),
        timed=tuple(timed.steps),
        left_out=(*timed.asked.left_out, *timed.pruned.left_out),
        rungs=tuple(found),
        winner=winner,
        provenance=Provenance.of_this_process(),
    )


def chosen_recipe(recipe: Recipe, candidates: Sequence[Candidate], name: str) -> Recipe:
    """The recipe as it was given, with the shape of the winner, in a run of its own."""
    [winner] = [candidate for candidate in candidates if candidate.name == name]
    run_name = f"{recipe.run_name}-{winner.name}"
    return recipe.model_copy(
        update={
            "architecture": winner.recipe.architecture,
            "run_name": run_name,
            "run_dir": str(Path(recipe.run_dir).with_name(run_name)),
        }
    )

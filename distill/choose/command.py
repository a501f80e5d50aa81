"""`widedraft choose`: its settings, and what it does. Imports torch only when it runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from architectures.errors import UserError
from architectures.files.section import Renamed, Section
from architectures.pages.blocks import Block
from architectures.pages.markdown import markdown
from architectures.settings.flags import Flag, flag_of
from architectures.settings.kinds import MOST, Rehash
from distill.checkpoints.trust import TrustCheckpoints
from distill.choose.given_alphas import GivenAlpha, TakenAlpha, known_alpha
from distill.choose.vocabularies import VocabularySize, head_rows
from distill.recipe.recipe import Recipe, load_recipe, save_recipe
from distill.recipe.times import Duration
from distill.recipe.words import Debug, Overrides, RecipeFile

if TYPE_CHECKING:
    from distill.choose.candidates import Candidate
    from distill.estimates.coverage import IdCounts
    from distill.run.run import Run
    from eval.acceptance.estimates import Resampling
    from eval.predictions.ranking import Ranked
    from eval.records.steps import ScoredLatency

REPEATS = 20  # of the step times of untrained drafts
RANKED_BY = ("duration", "alphas", "untrained", "floors", "budget")
AT_THE_END = ("distill.eval_interval=1dur", "distill.save_interval=1dur", "distill.eval_first=false")


class ChooseSettings(Section):
    """Which shapes are chosen from, and by what."""

    recipe: RecipeFile
    overrides: Overrides = ()
    debug: Debug = False
    rehash: Rehash = False
    trust_checkpoints: TrustCheckpoints = False
    layers: Annotated[tuple[Annotated[int, Field(ge=1, le=MOST)], ...], Flag(absent="1 2 3 4 6 8 12")] = Field(
        default=(), description="Numbers of layers of the candidates."
    )
    vocabularies: Annotated[tuple[VocabularySize, ...], Flag(metavar="N|all", absent="as the recipe has it")] = Field(
        default=(), description="Token ids that candidates can say, each with each number of layers."
    )
    most_parameters: Annotated[int, Field(ge=1, le=10**13)] | None = Field(
        default=None, description="No candidate has more."
    )
    duration: Annotated[Duration, Flag(metavar="T")] = Field(
        default="100ba", description="Length of each short training, as distill.max_duration."
    )
    alphas: Annotated[
        tuple[Annotated[GivenAlpha, BeforeValidator(known_alpha, json_schema_input_type=str)], ...],
        Flag(metavar="N[xK]=A"),
    ] = Field(
        default=(),
        description="Train nothing: N layers that say K ids have a token accepted with chance A, for every candidate.",
    )
    untrained: bool = Field(default=False, description="Stop after step times: what each could do at most.")
    floors: Annotated[str | None, Flag(metavar="NAME|FILE")] = Field(
        default=None,
        description="Time and train nothing: weigh shapes by the least that steps can take on this device, as --device "
        "of `widedraft check` names it.",
    )
    budget: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None,
        description="Train nothing: what answers, readings, text and minutes make each candidate pay, by the law of "
        "the trainings in this file of `python -m bench.budget`.",
    )
    within: Annotated[Annotated[float, Field(gt=0, le=MOST)] | None, Flag(metavar="MINUTES")] = Field(
        default=None, description="With --budget: the fastest mix that takes no longer."
    )
    out: Annotated[Path | None, Flag(metavar="FILE", absent="<run>/choose/recipe.yaml")] = Field(
        default=None, description="The recipe of the winner."
    )
    renamed: ClassVar = {"vocabulary": Renamed("vocabularies"), "alpha": Renamed("alphas")}

    @property
    def head_sizes(self) -> list[int]:
        """How many ids candidates can output."""
        return [head_rows(size) for size in self.vocabularies]

    @model_validator(mode="after")
    def _by_one_thing(self) -> "ChooseSettings":
        given = [flag_of(name) for name in RANKED_BY if name in self.model_fields_set]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)}: shapes are chosen by one of them. Leave the others out.")
        if self.within is not None and self.budget is None:
            raise UserError("--within: is a number of minutes for --budget FILE. Name both, or neither.")
        return self


def choose(path: Path, overrides: Sequence[str], settings: ChooseSettings) -> None:
    """Print what was found, and write the recipe of the winner.

    Args:
        path: A recipe.
        overrides: Its key=value words.
        settings: Which shapes, and how they are ranked.
    """
    from distill.choose.candidates import trials_folder
    from distill.choose.given_alphas import alphas_of
    from distill.choose.page import prospects_page
    from distill.choose.vocabulary_page import vocabulary_page
    from distill.run.run import RECIPE_NAME, Run
    from distill.run.stage import begin
    from eval.predictions.ranking import prospect, step_times

    require_file(settings.out, path)
    recipe = load_recipe(path, overrides)
    short = load_recipe(path, [*overrides, f"distill.max_duration={settings.duration}", *AT_THE_END])
    run = Run.of(recipe)
    begin(run)
    target = run.target
    candidates = candidates_in(target, short, settings)
    id_counts = id_counts_for(recipe, candidates, target)
    alphas = alphas_of(settings.alphas, candidates, id_counts) if settings.alphas else {}
    latency = measured_steps(recipe, target, candidates)
    prospects = {name: prospect(steps) for name, steps in step_times(latency).items()}
    tell(prospects_page(candidates, prospects), *vocabulary_page(candidates, prospects, id_counts))
    hopeful = [candidate for candidate in candidates if prospects[candidate.name].least_alpha is not None]
    if settings.untrained or not hopeful:
        return
    if alphas:
        ranked = ranked_as_given(recipe, hopeful, latency, alphas)
    else:
        ranked = ranked_by_training(run, hopeful, settings.duration)
        if id_counts is None and (written := id_counts_for(recipe, candidates, target)) is not None:
            tell(*vocabulary_page(candidates, prospects, written))
    out = settings.out or trials_folder(run) / RECIPE_NAME
    save_recipe(chosen_recipe(recipe, hopeful, ranked), out)
    print(f"\n{out}: the recipe of {ranked[0].draft}. Next: widedraft run {out}")


def require_file(out: Path | None, path: Path) -> None:
    """Raise UserError unless the winner's recipe can be written there."""
    if out is not None and out.is_dir():
        raise UserError(f"--out {out}: is a folder. Name a file in it.")
    if out is not None and out.resolve() == path.resolve():
        raise UserError(f"--out {out}: is the recipe that is read. Name another file.")


def id_counts_for(recipe: Recipe, candidates: Sequence["Candidate"], target: Path) -> "IdCounts | None":
    """Of the run's answers; None where there are none, or no candidate outputs what is most frequent in them.

    Raises:
        UserError: If a candidate's ids cannot be had.
    """
    from distill.choose.given_alphas import require_ids
    from distill.choose.vocabulary_page import ranked_by_answers
    from distill.estimates.coverage import id_counts_of_answers
    from distill.vocabulary.output_ids import tokens_in

    if all(candidate.recipe.architecture.vocabulary is None for candidate in candidates):
        return None
    tokens = tokens_in(target, candidates[0].shape.vocab)
    require_ids(candidates, target, tokens)
    return id_counts_of_answers(recipe, tokens) if ranked_by_answers(candidates) else None


def tell(*blocks: Block) -> None:
    """Print a page, and wait for nothing."""
    print(markdown(*blocks, level=2), flush=True)


def ranked_by_training(run: "Run", candidates: Sequence["Candidate"], duration: str) -> list["Ranked"]:
    """Train, score and print them."""
    from distill.choose.page import after_training, ranking_page
    from distill.choose.trials import score_candidates, train_candidates
    from eval.predictions.ranking import ranking

    temperature = run.recipe.eval.temperatures[0]
    drafts = train_candidates(run, candidates)
    card = score_candidates(run, drafts)
    ranked = ranking(card.rows_at(temperature), card.latency, card.settings.resampling)
    tell(ranking_page(ranked, after_training(duration, temperature)))
    return ranked


def ranked_as_given(
    recipe: Recipe, candidates: Sequence["Candidate"], latency: "ScoredLatency", alphas: Mapping[str, TakenAlpha]
) -> list["Ranked"]:
    """Print them with the acceptance that was given."""
    from distill.choose.given_alphas import scaled_sentences
    from distill.choose.page import GIVEN_ALPHAS, ranking_page
    from eval.predictions.ranking import ranking_of_alphas

    taken = {candidate.name: alphas[candidate.name] for candidate in candidates}
    by_name = {name: each.alpha for name, each in taken.items()}
    ranked = ranking_of_alphas(latency, by_name, resampling_of(recipe))
    tell(ranking_page(ranked, GIVEN_ALPHAS), *scaled_sentences(taken))
    return ranked


def resampling_of(recipe: Recipe) -> "Resampling":
    from eval.acceptance.estimates import Resampling

    return Resampling(recipe.eval.confidence, recipe.eval.num_resamples, recipe.seed)


def candidates_in(target: Path, recipe: Recipe, settings: ChooseSettings) -> list["Candidate"]:
    """The shapes that were asked for, to be cut out of the target in a folder, or out of the recipe's own source."""
    from architectures.shapes.shape import Shape
    from architectures.targets.target import read_config
    from distill.choose.candidates import candidates_of
    from distill.run.progressive import source_folder

    folders = (source_folder(recipe) or target, target)
    source, teacher = (Shape.from_config(read_config(each), where=str(each / "config.json")) for each in folders)
    layers = settings.layers or [each.layers for each in settings.alphas]
    named = dict.fromkeys(each.size for each in settings.alphas if each.size is not None)
    sizes = settings.head_sizes or list(named)
    return candidates_of(recipe, replace(source, vocab=teacher.vocab), layers, settings.most_parameters, sizes)


def measured_steps(recipe: Recipe, target: Path, candidates: Sequence["Candidate"]) -> "ScoredLatency":
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


def chosen_recipe(recipe: Recipe, candidates: Sequence["Candidate"], ranked: Sequence["Ranked"]) -> Recipe:
    """The recipe as it was given, with the shape of the winner, in a run of its own."""
    [winner] = [candidate for candidate in candidates if candidate.name == ranked[0].draft]
    name = f"{recipe.run_name}-{winner.name}"
    return recipe.model_copy(
        update={
            "architecture": winner.recipe.architecture,
            "run_name": name,
            "run_dir": str(Path(recipe.run_dir).with_name(name)),
        }
    )

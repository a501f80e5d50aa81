"""Commands that take a recipe: RECIPE key=value ..., and perhaps --debug. Each imports what it runs when it runs."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, field_validator, model_validator

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.flags import Flag
from distill.checkpoints.trust import TrustCheckpoints, trust_checkpoints
from distill.choose.candidates import ChooseSettings
from distill.hub.push import PushSettings
from distill.ranks.launching import FLAG, Processes
from distill.recipe.words import Debug, NamesRecipe, Overrides, RecipeFile
from distill.stages.scoring_without_recipe import EvalSettings, score_without_recipe
from eval.answers.shards import EVERY_FILE, Part
from eval.profiling import ProfileFolder, require_profile_folder

if TYPE_CHECKING:
    from distill.recipe.recipe import Recipe
    from distill.run.run import Run


SHARD = re.compile(r"[1-9]\d{0,4}/[1-9]\d{0,4}")


class Named(NamedTuple):
    """The run of the recipe a command names, and the file and words of that, which training processes read again."""

    run: "Run"
    path: Path
    overrides: list[str]


class StageSettings(Section):
    """The recipe whose stage is made."""

    recipe: RecipeFile
    overrides: Overrides = ()
    debug: Debug = False
    processes: Processes = None


class RunSettings(StageSettings):
    """The recipe whose stages, trainings among them, are made."""

    trust_checkpoints: TrustCheckpoints = False


class GenerateSettings(StageSettings):
    """The recipe whose prompts are answered, and which part of the answers is written."""

    shard: Annotated[str | None, Flag(metavar="I/N", absent="all of them")] = Field(
        default=None,
        description="Write every N-th file of answers, from the I-th on; the last of N such jobs joins them.",
    )

    @field_validator("shard")
    @classmethod
    def _one_of_them(cls, shard: str | None) -> str | None:
        if shard is not None and not (SHARD.fullmatch(shard) and int(shard.split("/")[0]) <= int(shard.split("/")[1])):
            raise ValueError(f"must be I/N with I from 1 to N, as 2/4, got {shard}.")
        return shard

    @property
    def part(self) -> Part:
        """Which files that are."""
        return EVERY_FILE if self.shard is None else Part(*map(int, self.shard.split("/")))


class DistillSettings(Section):
    """The recipe whose draft is trained."""

    recipe: RecipeFile
    overrides: Overrides = ()
    debug: Debug = False
    trust_checkpoints: TrustCheckpoints = False
    profile: ProfileFolder = None


class CacheSettings(StageSettings):
    """The recipe whose teacher is cached."""

    verify: bool = Field(default=False, description="Compare the checksums of a finished cache; write nothing.")

    @model_validator(mode="after")
    def _nothing_to_share_out(self) -> "CacheSettings":
        if self.verify and self.processes is not None:
            raise UserError(f"{FLAG} goes with what writes a cache: --verify reads one. Leave it out.")
        return self

    @property
    def is_for_one(self) -> bool:
        """See distill.ranks.launching."""
        return self.verify


def of_words(words: Sequence[str], *, debug: bool) -> StageSettings:
    """The recipe that is the first of some words, and its values."""
    return StageSettings(recipe=Path(words[0]), overrides=tuple(words[1:]), debug=debug)


def why_alone(settings: Any) -> str | None:
    """Why a command that several processes could share is the work of one; None where each GPU gets a process.

    Raises:
        UserError: If the recipe that the settings name is wrong.
    """
    from distill.recipe.recipe import load_recipe

    if getattr(settings, "is_without_recipe", False):
        placement = settings.holding.placement
    else:
        named = settings if hasattr(settings, "recipe") else of_words(settings.words, debug=False)
        placement = load_recipe(named.recipe, named.overrides).target.placement
    return "target.placement is spread: one process has all GPUs of this machine." if placement == "spread" else None


def trust_if_asked(asked: bool) -> None:  # noqa: FBT001
    """Trust checkpoints from here on if --trust-checkpoints was given."""
    if asked:
        trust_checkpoints()


def recipe_of(settings: NamesRecipe, *, weights: bool = True) -> "Recipe":
    """The recipe a command names, or that of its debug run; `weights` as in `begin_debug`."""
    from distill.recipe.recipe import load_recipe

    return load_recipe(*recipe_words(settings, weights=weights))


def recipe_words(settings: NamesRecipe, *, weights: bool = True) -> tuple[Path, list[str]]:
    """The recipe file and the key=value words a command names, or the written-out recipe of its debug run."""
    if not settings.debug:
        return settings.recipe, list(settings.overrides)
    from distill.debug.files import begin_debug

    return begin_debug(settings.recipe, settings.overrides, weights=weights), []


@contextmanager
def own_run(settings: NamesRecipe, *, beside_others: bool = False) -> Iterator[Named]:
    """The recipe a command names, in a run that no other command works in meanwhile.

    Args:
        settings: Name it.
        beside_others: Other commands that say the same may work in it.

    Raises:
        UserError: If the recipe is wrong, its folder may not be a run's, another process works in it, or the processes
            of this command were given different recipes or do not see one folder.
    """
    from distill.ranks.joining import joined
    from distill.ranks.same import refuse_spread, require_one_folder, require_same
    from distill.recipe.recipe import load_recipe
    from distill.run.recorded import told_apart
    from distill.run.run import Run
    from distill.run.run_folder import owned_run

    with joined() as share:
        recipe, path, overrides = load_recipe(settings.recipe, settings.overrides), settings.recipe, settings.overrides
        require_same(share, "recipe", told_apart(recipe))
        refuse_spread(share, recipe.target.holding)
        if settings.debug:
            path, overrides = share.lead(lambda: recipe_words(settings))
            recipe = load_recipe(path, overrides)
        run = Run.of(recipe, share)
        with owned_run(run, beside_others=beside_others) if share.leads else nullcontext():
            require_one_folder(share, run.folder)
            yield Named(run, path, list(overrides))


def choose(settings: ChooseSettings) -> None:
    """Rank shapes by predicted speed; the winner becomes a recipe."""
    from distill.choose.search import choose as choose_shape

    trust_if_asked(settings.trust_checkpoints)
    with own_run(settings) as named:
        choose_shape(named.path, named.overrides, settings, named.run.share)


def prune(settings: RunSettings) -> None:
    """Prune the target to the undistilled draft; learned masks are trained first if the recipe names them."""
    from distill.stages.processes import mask_stage
    from distill.stages.running import prune_stage

    trust_if_asked(settings.trust_checkpoints)
    with own_run(settings) as named:
        if named.run.recipe.architecture.method == "learned_masks":
            mask_stage(named.path, named.overrides, named.run.share)
        prune_stage(named.run)


def generate(settings: GenerateSettings) -> None:
    """Let the target answer the prompts, or a part of them beside other jobs that answer theirs."""
    from distill.stages.running import generate_stage

    with own_run(settings, beside_others=settings.part != EVERY_FILE) as named:
        generate_stage(named.run, settings.part)


def cache(settings: CacheSettings) -> None:
    """Let the teacher read the answers, or verify what it left."""
    from distill.run.run import Run
    from distill.stages.running import cache_stage, verify_cache_stage

    if settings.verify:
        verify_cache_stage(Run.of(recipe_of(settings)))
        return
    with own_run(settings) as named:
        cache_stage(named.run)


def distill(settings: DistillSettings) -> None:
    """Train and export; the training processes load the recipe themselves."""
    from distill.stages.processes import distill_stage

    trust_if_asked(settings.trust_checkpoints)
    profile_words = [] if settings.profile is None else [f"--profile={settings.profile}"]
    if settings.profile is not None:
        require_profile_folder(settings.profile)
    with own_run(settings) as named:
        distill_stage(named.path, named.overrides, *profile_words, share=named.run.share)


def score(settings: EvalSettings) -> None:
    """Score a recipe's draft, any draft against any target, or any draft on recorded answers."""
    if settings.is_without_recipe:
        score_without_recipe(settings)
        return
    from distill.stages.running import checkpoints_stage, eval_stage

    trust_if_asked(settings.trust_checkpoints)
    with own_run(of_words(settings.words, debug=settings.debug)) as named:
        (checkpoints_stage if settings.checkpoints else eval_stage)(named.run)


def run_everything(settings: RunSettings) -> None:
    """All stages, skipping what is done."""
    from distill.stages.running import run_all

    trust_if_asked(settings.trust_checkpoints)
    with own_run(settings) as named:
        run_all(named.path, named.overrides, named.run.share)


def push(settings: PushSettings) -> None:
    """Push the draft of a run and print its page; of a dry run write the files that would be pushed, and list them."""
    from distill.hub.publish import dry_run, push_run

    if settings.dry_run is None:
        print(push_run(settings))
        return
    sizes = {name: (settings.dry_run / name).stat().st_size for name in dry_run(settings, settings.dry_run)}
    print("\n".join(f"{size / 1e6:10.2f} MB  {name}" for name, size in sizes.items()))
    print(f"{settings.dry_run}: {len(sizes)} files of {sum(sizes.values()) / 1e6:.1f} MB; nothing was sent")

"""Commands on a recipe: RECIPE key=value ..., most with --debug. Each imports its implementation when it runs."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, field_validator, model_validator

from architectures.errors import UserError
from architectures.gguf_format import GgufKind, file_name
from architectures.settings import MOST, Dtype, Flag, Revision, Section
from architectures.tables import facts, terminal
from architectures.vocabulary import Form
from distill.checkpoints.trust import TrustCheckpoints, trust_checkpoints
from distill.choose.candidates import ChooseSettings
from distill.distributed import FLAG, Processes, joined, reject_spread, require_one_folder, require_same
from distill.hub.push import PushSettings
from distill.recipe.recipe import Debug, NamesRecipe, Overrides, Recipe, RecipeFile, RecipeWords, is_recipe, load_recipe
from distill.score_pair import EvalSettings, score_without_recipe
from eval.profiling import ProfileFolder, require_profile_folder
from eval.responses import EVERY_FILE, ShardPart

if TYPE_CHECKING:
    from distill.run import Run

SHARD = re.compile(r"[1-9]\d{0,4}/[1-9]\d{0,4}")


class Named(NamedTuple):
    """A run, and the recipe file and overrides from which training processes load its recipe again."""

    run: "Run"
    path: Path
    overrides: list[str]


class StageSettings(Section):
    """Settings of a stage."""

    recipe: RecipeFile
    overrides: Overrides = ()
    debug: Debug = False
    processes: Processes = None


class RunSettings(StageSettings):
    """Settings of stages, training included."""

    trust_checkpoints: TrustCheckpoints = False


class GenerateSettings(StageSettings):
    """Settings of `generate`."""

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
    def part(self) -> ShardPart:
        return EVERY_FILE if self.shard is None else ShardPart(*map(int, self.shard.split("/")))


class DistillSettings(Section):
    """Settings of `distill`."""

    recipe: RecipeFile
    overrides: Overrides = ()
    debug: Debug = False
    trust_checkpoints: TrustCheckpoints = False
    profile: ProfileFolder = None


class CacheSettings(StageSettings):
    """Settings of `cache`."""

    verify: bool = Field(default=False, description="Compare the checksums of a finished cache; write nothing.")

    @model_validator(mode="after")
    def _nothing_to_share_out(self) -> "CacheSettings":
        if self.verify and self.processes is not None:
            raise UserError(f"{FLAG} goes with what writes a cache: --verify reads one. Leave it out.")
        return self

    @property
    def is_for_one(self) -> bool:
        """See distill.distributed."""
        return self.verify


def of_words(words: Sequence[str], *, debug: bool) -> StageSettings:
    return StageSettings(recipe=Path(words[0]), overrides=tuple(words[1:]), debug=debug)


def single_process_reason(settings: Any) -> str | None:
    """Return the reason to run a distributed command in one process; None for one process per GPU."""
    if getattr(settings, "is_without_recipe", False):
        placement = settings.holding.placement
    else:
        named = settings if hasattr(settings, "recipe") else of_words(settings.words, debug=False)
        placement = load_recipe(named.recipe, named.overrides).target.placement
    return "target.placement is spread: one process has all GPUs of this machine." if placement == "spread" else None


def trust_if_requested(asked: bool) -> None:  # noqa: FBT001
    if asked:
        trust_checkpoints()


def recipe_of(settings: NamesRecipe, *, weights: bool = True) -> "Recipe":
    """Load the recipe of a command or its debug run; `weights` as in `begin_debug`."""
    return load_recipe(*recipe_words(settings, weights=weights))


def recipe_words(settings: NamesRecipe, *, weights: bool = True) -> tuple[Path, list[str]]:
    """Return the recipe file and overrides of a command or its debug run."""
    if not settings.debug:
        return settings.recipe, list(settings.overrides)
    from distill.debug import begin_debug

    return begin_debug(settings.recipe, settings.overrides, weights=weights), []


@contextmanager
def own_run(settings: NamesRecipe, *, next_to_others: bool = False) -> Iterator[Named]:
    """Yield the run of a command's recipe, locked against other commands.

    Args:
        next_to_others: Allow other commands that also set this to work in the run.

    Raises:
        UserError: If the recipe is invalid, its directory is unsuitable, another process works in it, or the processes
            of this command have different recipes or do not see one directory.
    """
    from distill.run import Run, identity_values, owned_run

    with joined() as share:
        recipe, path, overrides = load_recipe(settings.recipe, settings.overrides), settings.recipe, settings.overrides
        require_same(share, "recipe", identity_values(recipe))
        reject_spread(share, recipe.target.holding)
        if settings.debug:
            path, overrides = share.lead(lambda: recipe_words(settings))
            recipe = load_recipe(path, overrides)
        run = Run.of(recipe, share)
        with owned_run(run, next_to_others=next_to_others) if share.leads else nullcontext():
            require_one_folder(share, run.folder)
            yield Named(run, path, list(overrides))


def choose(settings: ChooseSettings) -> None:
    """Rank shapes by predicted speed; the winner becomes a recipe."""
    from distill.choose.search import choose as choose_shape

    trust_if_requested(settings.trust_checkpoints)
    with own_run(settings) as named:
        choose_shape(named.path, named.overrides, settings, named.run.share)


def prune(settings: RunSettings) -> None:
    """Prune the target to the undistilled draft; train learned masks first if the recipe uses them."""
    from distill.pipeline import mask_stage, prune_stage

    trust_if_requested(settings.trust_checkpoints)
    with own_run(settings) as named:
        if named.run.recipe.architecture.method == "learned_masks":
            mask_stage(named.path, named.overrides, named.run.share)
        prune_stage(named.run)


def generate(settings: GenerateSettings) -> None:
    """Generate target responses for the prompts, or a part of them."""
    from distill.pipeline import generate_stage

    with own_run(settings, next_to_others=settings.part != EVERY_FILE) as named:
        generate_stage(named.run, settings.part)


def cache(settings: CacheSettings) -> None:
    """Cache the teacher's outputs on the responses, or verify a cache."""
    from distill.pipeline import cache_stage, verify_cache_stage
    from distill.run import Run

    if settings.verify:
        verify_cache_stage(Run.of(recipe_of(settings)))
        return
    with own_run(settings) as named:
        cache_stage(named.run)


def distill(settings: DistillSettings) -> None:
    """Train and export; the training processes load the recipe themselves."""
    from distill.pipeline import distill_stage

    trust_if_requested(settings.trust_checkpoints)
    profile_words = [] if settings.profile is None else [f"--profile={settings.profile}"]
    if settings.profile is not None:
        require_profile_folder(settings.profile)
    with own_run(settings) as named:
        distill_stage(named.path, named.overrides, *profile_words, share=named.run.share)


def score(settings: EvalSettings) -> None:
    """Score a recipe's draft, or any draft against any target or on recorded responses."""
    if settings.is_without_recipe:
        score_without_recipe(settings)
        return
    from distill.pipeline import checkpoints_stage, eval_stage

    trust_if_requested(settings.trust_checkpoints)
    with own_run(of_words(settings.words, debug=settings.debug)) as named:
        (checkpoints_stage if settings.checkpoints else eval_stage)(named.run)


def run_everything(settings: RunSettings) -> None:
    """Run all stages that are not finished."""
    from distill.pipeline import run_all

    trust_if_requested(settings.trust_checkpoints)
    with own_run(settings) as named:
        run_all(named.path, named.overrides, named.run.share)


def push(settings: PushSettings) -> None:
    """Push the draft of a run and print its URL, or write and list the files of a dry run."""
    from distill.hub.publish import dry_run, push_run

    if settings.dry_run is None:
        print(push_run(settings))
        return
    sizes = {name: (settings.dry_run / name).stat().st_size for name in dry_run(settings, settings.dry_run)}
    print("\n".join(f"{size / 1e6:10.2f} MB  {name}" for name, size in sizes.items()))
    print(f"{settings.dry_run}: {len(sizes)} files of {sum(sizes.values()) / 1e6:.1f} MB; nothing was sent")


OF_A_CHECKPOINT = ("checkpoint", "init", "target")


class ExportSettings(Section):
    """Settings of `export`: a recipe, a draft directory, or a checkpoint with its init and target."""

    words: RecipeWords = Field(default=(), description="A recipe or a draft folder, unless --checkpoint is given.")
    checkpoint: Annotated[Path | None, Flag(metavar="PATH")] = Field(
        default=None, description="A .pt file, or a folder, of <run>/checkpoints."
    )
    init: Annotated[Path | None, Flag(metavar="DIR")] = Field(
        default=None, description="The folder its training started from: <run>/init."
    )
    target: Annotated[str | None, Flag(metavar="T")] = Field(
        default=None, description="Folder or hub id of the model it drafts for."
    )
    revision: Revision = "main"
    to: Annotated[Path | None, Flag(metavar="DIR")] = Field(default=None, description="The folder to write.")
    form: Annotated[Form | None, Flag()] = Field(
        default=None,
        description="Form of a draft of a reduced vocabulary. whole: a head of all ids, for any engine, no faster; "
        "own-tokenizer: for vLLM's use_heterogeneous_vocab.",
    )
    dtype: Annotated[Dtype | None, Flag(absent="bfloat16; a recipe has export.dtype")] = Field(
        default=None, description="Number type of its weights."
    )
    gguf: Annotated[tuple[GgufKind, ...], Flag(is_repeated=True)] = Field(
        default=(), description="Also write DIR/<name>-KIND.gguf, for llama.cpp."
    )
    debug: Debug = False
    trust_checkpoints: TrustCheckpoints = False

    @model_validator(mode="after")
    def _one_source(self) -> "ExportSettings":
        named = [getattr(self, name) is not None for name in (*OF_A_CHECKPOINT, "to")]
        if any(named[:-1]):
            if not all(named) or self.words or self.debug or self.form:
                raise UserError("--checkpoint, --init, --target and --to go together, without a recipe or --form.")
            return self
        if not self.words:
            raise UserError("Name a recipe, a draft folder, or --checkpoint, --init, --target and --to.")
        if self.dtype is not None:
            raise UserError("--dtype is of --checkpoint. Set export.dtype of the recipe.")
        if (self.form is None) != (self.to is None):
            raise UserError("--form and --to go together: the form, and the folder to write it to.")
        first, *others = self.words
        if self.is_folder and (others or self.debug or not (self.form or self.gguf)):
            raise UserError(f"{first}: is a draft folder. Give --form with --to, or --gguf, and nothing else.")
        return self

    @property
    def is_folder(self) -> bool:
        """True for a draft directory, False for a recipe."""
        return bool(self.words) and Path(self.words[0]).is_dir()


def export(settings: ExportSettings) -> None:
    """Write a draft directory, another form of it, and its GGUF files."""
    trust_if_requested(settings.trust_checkpoints)
    if settings.checkpoint and settings.init and settings.target and settings.to:
        from architectures.hub import resolve_checkpoint
        from distill.export import export_any

        target, dtype = resolve_checkpoint(settings.target, revision=settings.revision), settings.dtype or "bfloat16"
        export_any(settings.checkpoint, settings.init, settings.to, target=target, dtype=dtype)
        print(f"   {settings.to}: from {settings.checkpoint}")
        write_gguf_files(settings.to, settings.to.resolve().name, settings.gguf)
        return
    if settings.is_folder:
        draft = Path(settings.words[0])
        write_form(draft, settings)
        write_gguf_files(draft, draft.resolve().name, settings.gguf)
        return
    from distill.pipeline import export_stage

    with own_run(of_words(settings.words, debug=settings.debug)) as named:
        export_stage(named.run)
        write_form(named.run.draft.path, settings)
        write_gguf_files(named.run.draft.path, named.run.recipe.run_name, settings.gguf)


def write_form(draft: Path, settings: ExportSettings) -> None:
    """Convert a draft with a reduced vocabulary to an engine's form, if requested."""
    if settings.form is None or settings.to is None:
        return
    from architectures.convert import convert_draft

    convert_draft(draft, settings.to, settings.form)
    print(f"   {settings.to}: form {settings.form} of {draft}; its README.md says which engines load it")


def write_gguf_files(folder: Path, name: str, kinds: Sequence[GgufKind]) -> None:
    """Export a draft as GGUF files into its directory."""
    if not kinds:
        return
    from architectures.gguf_export import export_gguf

    for kind in dict.fromkeys(kinds):
        written = export_gguf(folder, folder / file_name(name, kind), kind, name=name)
        print(f"   {written.path}: {written.num_bytes / 1e6:,.1f} MB")
        if written.fallen_back:
            first, more = written.fallen_back[0], len(written.fallen_back) - 1
            also = f" and {more} more" if more else ""
            print(f"   F16 in it, since their rows are no whole blocks of {kind}: {first}{also}")


class CheckSettings(Section):
    """Settings of `check`."""

    recipe: RecipeFile
    words: Annotated[tuple[str, ...], Flag(metavar="RECIPE | key=value", is_word=True)] = Field(
        default=(), description="More recipes; and values that replace those of a dotted key in all of them."
    )
    debug: Debug = False
    device: Annotated[str | None, Flag(metavar="NAME", absent="this machine's GPU, else its processor")] = Field(
        default=None,
        description="Compute hours and memory for this device, as nvidia-h100-80gb-hbm3.",
    )

    processes: Annotated[
        Annotated[int, Field(ge=1, le=MOST)] | None,
        Flag(metavar="N", absent="1; what one of 8 cannot hold is refused"),
    ] = Field(default=None, description="Compute the memory of one of N processes in every stage.")
    device_gib: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Flag(metavar="GIB", absent="what the GPU has, if it is known"),
    ] = Field(default=None, description="Memory of one device; a stage that needs more is refused.")

    @property
    def is_for_one(self) -> bool:
        """See distill.distributed: `processes` is the number to estimate for."""
        return True

    @property
    def recipes(self) -> list[Path]:
        more = (Path(word) for word in self.words if is_recipe(word))
        return list(dict.fromkeys((self.recipe, *more)))

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(word for word in self.words if not is_recipe(word))


def check(settings: CheckSettings) -> None:
    """Print shapes and costs of recipes; raises UserError with all errors of one, or the invalid ones of several."""
    from distill.check import check_recipe

    several, wrong = len(settings.recipes) > 1, []
    for path in settings.recipes:
        if several:
            print(f"== {path}", flush=True)
        try:
            recipe = recipe_of(of_words((str(path), *settings.overrides), debug=settings.debug), weights=False)
            rows = check_recipe(recipe, settings.device, processes=settings.processes, device_gib=settings.device_gib)
        except UserError as error:
            if not several:
                raise
            print(error, file=sys.stderr, flush=True)
            wrong.append(path)
        else:
            print(terminal(facts(rows)), flush=True)
    if wrong:
        raise UserError(
            f"{len(wrong)} of {len(settings.recipes)} recipes are wrong: {', '.join(map(str, wrong))}. "
            "Fix what is listed above."
        )

"""Commands on a recipe: RECIPE key=value ..., most with --debug. Each imports its implementation when it runs."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from omegaconf import OmegaConf
from pydantic import AfterValidator, Field, field_validator, model_validator

from architectures import settings as fields
from architectures.console import terminal
from architectures.errors import UserError
from architectures.gguf_format import GgufKind, file_name
from architectures.hub import resolve_checkpoint
from architectures.manifest import fingerprint_checkpoint, fingerprint_value, flat
from architectures.settings import MOST, WHOLE, Flag, Holding, Section, flag_of
from architectures.vocabulary import Form
from distill.checkpoints.checkpoint_files import OPTION, TrustCheckpoints
from distill.choose.candidates import ChooseSettings
from distill.distributed import FLAG, Processes, joined, reject_spread, require_one_folder, require_same
from distill.hub.push import PushSettings
from distill.recipe.recipe import (
    Debug,
    Recipe,
    RecipeFile,
    RecipeSettings,
    RecipeWords,
    Scoring,
    TrainSettings,
    is_recipe,
    load_recipe,
    load_scoring,
    require_profile_folder,
)
from distill.run import owned
from eval.config import ServeSettings, server_url
from eval.responses import EVERY_FILE, ShardPart, prompt_record
from eval.tasks import PromptWords, prompt_sources

if TYPE_CHECKING:
    from distill.run import Run
    from eval.prompts import Prompt
    from eval.scorecard_schema import RecordedScorecard, Scorecard

OF_RECIPE = {"target", "draft", "num_speculative_tokens", "dtype", "max_model_len"}  # flags of serve
USAGE = "widedraft eval scores a RECIPE's draft, a draft against a target, or a draft on recorded responses."


class EvalSettings(Section):
    """Settings of `widedraft eval`: a recipe's draft, a draft against a target, or a draft on recorded responses."""

    words: RecipeWords = Field(default=(), description="A recipe, unless --draft is given.")
    target: Annotated[str | None, Flag(metavar="A")] = Field(
        default=None, description="Directory or hub id of the target."
    )
    recorded: Annotated[Path | None, Flag(metavar="PATH")] = Field(
        default=None, description="Recorded responses instead of a target: traces or a text file."
    )
    endpoint: Annotated[Annotated[str, AfterValidator(server_url)] | None, Flag(metavar="URL")] = Field(
        default=None,
        description="Score greedy responses of this vLLM, SGLang or llama.cpp server, whose model may be quantised; of "
        "the target only tokenizer and chat template are read.",
    )
    draft: Annotated[str | None, Flag(metavar="B")] = Field(
        default=None, description="Directory or hub id of the draft."
    )
    prompts: PromptWords = ()
    baseline: Annotated[str | None, Flag(metavar="C")] = Field(
        default=None, description="Directory or hub id of a draft to compare B with, paired by prompt."
    )
    checkpoints: bool = Field(default=False, description="With a recipe: also score every saved checkpoint.")
    out: Annotated[Path | None, Flag(metavar="DIR", absent="eval-<draft's name>")] = Field(
        default=None, description="Output directory of the scorecard."
    )
    target_placement: fields.TargetPlacement = "whole"
    target_device_memory_gib: fields.DeviceMemoryGib = None
    target_bits: fields.TargetBits = None
    debug: Debug = False
    trust_checkpoints: TrustCheckpoints = False
    processes: Processes = None

    @property
    def is_for_one(self) -> bool:
        """See distill.distributed."""
        return self.recorded is not None or self.endpoint is not None

    @property
    def holding(self) -> Holding:
        """How the target is held; a recipe has its own keys for that."""
        return Holding(self.target_placement, self.target_device_memory_gib, self.target_bits)

    @property
    def is_without_recipe(self) -> bool:
        return bool(self.prompts) or any(each is not None for each in (self.target, self.draft, self.recorded))

    @property
    def all_words(self) -> tuple[str, ...]:
        """The words, with the keys that --endpoint sets."""
        if self.endpoint is None:
            return self.words
        return (*self.words, "generate.engine=endpoint", f"generate.urls=[{self.endpoint}]")

    @model_validator(mode="after")
    def _recipe_or_pair(self) -> "EvalSettings":
        if self.is_without_recipe and (self.checkpoints or self.debug):
            raise UserError("--checkpoints and --debug need a RECIPE. Remove them.")
        if not self.is_without_recipe and (not self.words or self.out is not None or self.baseline is not None):
            raise UserError(f"{USAGE} --out and --baseline need --draft.")
        others = (self.recorded, self.baseline, self.checkpoints or None, self.debug or None)
        if self.endpoint is not None and any(each is not None for each in others):
            raise UserError("--endpoint does not support --recorded, --baseline, --checkpoints or --debug. Remove it.")
        if self.holding != WHOLE and (self.target is None or self.is_for_one):
            raise UserError("--target-placement, its memory and --target-bits need --target; a recipe has keys.")
        if (mistake := self.holding.mistake) is not None:
            raise UserError(f"--target-placement: {mistake}")
        if self.processes is not None and self.is_for_one:
            raise UserError(f"{FLAG}: recorded responses are scored by one process. Remove it.")
        if self.trust_checkpoints and not self.checkpoints:
            raise UserError(f"{OPTION}: needs --checkpoints. Remove it.")
        return self


def score_without_recipe(settings: EvalSettings) -> None:
    from eval.scorecard_tables import summary

    scoring = load_scoring(settings.all_words)
    out = settings.out or Path(f"eval-{Path(str(settings.draft)).name}")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file. Choose a directory.")
    if settings.recorded is not None:
        card = score_recorded(settings, scoring, out)
    else:
        card = (score_pair if settings.endpoint is None else score_pair_on_endpoint)(settings, scoring, out)
    print(f"{summary(card)}\nscorecard: {out / 'scorecard.md'}")


def score_pair(settings: EvalSettings, scoring: Scoring, out: Path) -> "Scorecard":
    from eval.engines.external_generate import responses_by
    from eval.prompts import load_in_turn
    from eval.scorecard import score_drafts

    if settings.target is None or settings.draft is None or not settings.prompts:
        raise UserError(f"{USAGE} Pass --target, --draft and --prompts, or --recorded and --draft.")
    if scoring.eval.tasks:
        raise UserError("eval.tasks and --prompts both set the prompts. Remove one of them.")
    prompts = load_in_turn(prompt_sources(settings.prompts), most=scoring.eval.num_prompts)
    named = {"baseline": settings.baseline, "draft": settings.draft}  # the scorecard is about the last
    target = resolve_checkpoint(settings.target)
    drafts = {name: resolve_checkpoint(each) for name, each in named.items() if each is not None}
    if drafts["draft"].resolve() == target.resolve():
        print(f"warning: --draft is the target itself, {target}; every token is accepted", file=sys.stderr)
    with (
        joined() as share,
        owned(out) if share.leads else nullcontext(),
        responses_by(scoring.generate) as kind,
    ):
        reject_spread(share, settings.holding)
        require_one_folder(share, out)
        if share.count > 1:
            same = {
                **{name: fingerprint_checkpoint(folder) for name, folder in {"target": target, **drafts}.items()},
                "prompts": fingerprint_value([prompt_record(prompt) for prompt in prompts]),
                **{key: str(value) for key, value in flat(scoring.model_dump(mode="json")).items()},
            }
            require_same(share, "models, prompts and settings", same)
        how = {"seed": scoring.seed, "generated_by": kind, "holding": settings.holding, "share": share}
        return score_drafts(target, drafts, prompts, scoring.eval, out, **how)


def score_recorded(settings: EvalSettings, scoring: Scoring, out: Path) -> "RecordedScorecard":
    from eval.recorded import USED_KEYS, read_recorded_text, read_recorded_traces, score_recording

    path, names = settings.recorded, ("target", "baseline")
    if given := [flag_of(name) for name in names if getattr(settings, name) is not None]:
        raise UserError(f"{' and '.join(given)} must not be set: --recorded scores one draft without its target.")
    if settings.draft is None:
        raise UserError("--draft is required with --recorded.")
    if path is None or not path.exists():
        raise UserError(f"--recorded {path}: not found. Pass a directory of responses, or a text file of tensors.")
    if path.is_dir() == bool(settings.prompts):
        raise UserError("--prompts: required with a text file of responses, not with a directory, which contains them.")
    keys = used_keys(settings, USED_KEYS, "--recorded")
    if not scoring.generate.is_local:
        raise UserError("generate: not used with --recorded. Remove it.")

    draft = resolve_checkpoint(settings.draft)
    with owned(out):
        if path.is_dir():
            recording = read_recorded_traces(path, draft)
        else:
            sources = [source.path for source in prompt_sources(settings.prompts) if source.task is None]
            if len(sources) != 1 or len(settings.prompts) != 1:
                raise UserError(f"--prompts {' '.join(settings.prompts)}: must be one file with a row per response.")
            recording = read_recorded_text(path, str(sources[0]), draft)
        config = scoring.eval
        if "num_prompts" not in keys:  # a pass over a response is cheap: use all of them
            config = config.model_copy(update={"num_prompts": recording.num_prompts})
        return score_recording(recording, draft, config, out, seed=scoring.seed)


def score_pair_on_endpoint(settings: EvalSettings, scoring: Scoring, out: Path) -> "RecordedScorecard":
    from eval.prompts import load_in_turn
    from eval.recorded import ENDPOINT_KEYS

    if settings.target is None or settings.draft is None or not settings.prompts:
        raise UserError(f"{USAGE} With --endpoint, pass --target, --draft and --prompts, or a RECIPE.")
    if "temperatures" in used_keys(settings, ENDPOINT_KEYS, "--endpoint") and scoring.eval.temperatures != (0.0,):
        raise UserError(f"eval.temperatures: must be [0] with --endpoint, got {list(scoring.eval.temperatures)}.")
    prompts = load_in_turn(prompt_sources(settings.prompts), most=scoring.eval.num_prompts)
    folders = resolve_checkpoint(settings.target), resolve_checkpoint(settings.draft)
    with owned(out):
        return score_on_endpoint(scoring, folders, prompts, out)


def score_run_on_endpoint(settings: EvalSettings) -> None:
    """Score <run>/draft on the greedy responses of a server, into <run>/eval-endpoint, at temperature 0 only."""
    from distill.pipeline import eval_prompts
    from eval.scorecard_tables import summary

    with own_run(of_words(settings.all_words, debug=False)) as run:
        run.draft.require_finished()
        if 0.0 not in run.recipe.eval.temperatures:
            raise UserError(f"eval.temperatures: must contain 0, got {list(run.recipe.eval.temperatures)}.")
        out = run.folder / "eval-endpoint"
        card = score_on_endpoint(run.recipe, (run.target, run.draft.path), eval_prompts(run), out)
    print(f"{summary(card)}\nscorecard: {out / 'scorecard.md'}")


def score_on_endpoint(
    scoring: Scoring | Recipe, folders: tuple[Path, Path], prompts: Sequence["Prompt"], out: Path
) -> "RecordedScorecard":
    """Record the greedy responses of a server as a target's, and score a draft on them."""
    from eval.recorded import record_endpoint, score_recording

    config = scoring.eval.model_copy(update={"temperatures": (0.0,)})
    recording = record_endpoint(*folders, prompts, out, config=config, generate=scoring.generate)
    return score_recording(recording, folders[1], config, out, seed=scoring.seed)


def used_keys(settings: EvalSettings, used: AbstractSet[str], flag: str) -> set[str]:
    """Return the keys of section `eval` on the command line; raise UserError for one without effect."""
    keys = {str(key) for key in OmegaConf.from_dotlist(list(settings.words)).get("eval", {})}
    if ignored := sorted(keys - used):
        names = ", ".join(sorted(used))
        raise UserError(f"eval.{', eval.'.join(ignored)}: not used with {flag}, which reads only {names}.")
    return keys


SHARD = re.compile(r"[1-9]\d{0,4}/[1-9]\d{0,4}")


class StageSettings(RecipeSettings):
    """Settings of a stage."""

    processes: Processes = None


class RunSettings(StageSettings):
    """Settings of stages, training included."""

    trust_checkpoints: TrustCheckpoints = False


class GenerateSettings(StageSettings):
    """Settings of `generate`."""

    shard: Annotated[str | None, Flag(metavar="I/N", absent="all files")] = Field(
        default=None,
        description="Write the I-th of every N files of responses; the last of the N jobs merges them.",
    )

    @field_validator("shard")
    @classmethod
    def _one_of_them(cls, shard: str | None) -> str | None:
        if shard is not None and not (SHARD.fullmatch(shard) and int(shard.split("/")[0]) <= int(shard.split("/")[1])):
            raise ValueError(f"must be I/N with I from 1 to N, such as 2/4, got {shard}.")
        return shard

    @property
    def part(self) -> ShardPart:
        return EVERY_FILE if self.shard is None else ShardPart(*map(int, self.shard.split("/")))


class CacheSettings(StageSettings):
    """Settings of `cache`."""

    verify: bool = Field(default=False, description="Verify the checksums of a complete cache; write nothing.")

    @model_validator(mode="after")
    def _nothing_to_share_out(self) -> "CacheSettings":
        if self.verify and self.processes is not None:
            raise UserError(f"{FLAG}: not supported with --verify. Remove it.")
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


def recipe_of(settings: RecipeSettings, *, weights: bool = True) -> "Recipe":
    """Load the recipe of a command or its debug run; `weights` as in `begin_debug`."""
    return load_recipe(*recipe_words(settings, weights=weights))


def recipe_words(settings: RecipeSettings, *, weights: bool = True) -> tuple[Path, list[str]]:
    """Return the recipe file and overrides of a command or its debug run."""
    if not settings.debug:
        return settings.recipe, list(settings.overrides)
    from distill.debug import begin_debug

    return begin_debug(settings.recipe, settings.overrides, weights=weights), []


@contextmanager
def own_run(settings: RecipeSettings, *, next_to_others: bool = False) -> Iterator["Run"]:
    """Yield the run of a command's recipe, locked against other commands.

    Args:
        next_to_others: Allow other commands that also set this to work in the run.

    Raises:
        UserError: If the recipe is invalid, its directory is unsuitable, another process works in it, or the processes
            of this command have different recipes or do not see one directory.
    """
    from distill.run import Run, identity_values, owned_run

    with joined() as share:
        path, overrides = settings.recipe, [*settings.overrides]
        recipe = load_recipe(path, overrides)
        require_same(share, "recipe", identity_values(recipe))
        reject_spread(share, recipe.target.holding)
        if settings.debug:
            path, overrides = share.lead(lambda: recipe_words(settings))
            recipe = load_recipe(path, overrides)
        run = Run.of(recipe, share, (str(path), *overrides))
        with owned_run(run, next_to_others=next_to_others) if share.leads else nullcontext():
            require_one_folder(share, run.folder)
            yield run


def choose(settings: ChooseSettings) -> None:
    """Rank shapes by predicted speed; the winner becomes a recipe."""
    from distill.choose.search import choose as choose_shape

    with own_run(settings) as run:
        choose_shape(run, settings)


def prune(settings: RunSettings) -> None:
    """Prune the target to the undistilled draft; train learned masks first if the recipe uses them."""
    from distill.pipeline import mask_stage, prune_stage

    with own_run(settings) as run:
        if run.recipe.architecture.method == "learned_masks":
            mask_stage(run)
        prune_stage(run)


def generate(settings: GenerateSettings) -> None:
    """Generate target responses for the prompts, or a part of them."""
    from distill.pipeline import generate_stage

    with own_run(settings, next_to_others=settings.part != EVERY_FILE) as run:
        generate_stage(run, settings.part)


def cache(settings: CacheSettings) -> None:
    """Cache the teacher's outputs on the responses, or verify a cache."""
    from distill.pipeline import cache_stage, verify_cache_stage
    from distill.run import Run

    if settings.verify:
        verify_cache_stage(Run.of(recipe_of(settings)))
        return
    with own_run(settings) as run:
        cache_stage(run)


def distill(settings: TrainSettings) -> None:
    """Train and export; the training processes load the recipe themselves."""
    from distill.pipeline import distill_stage

    profile_words = [] if settings.profile is None else [f"--profile={settings.profile}"]
    if settings.profile is not None:
        require_profile_folder(settings.profile)
    with own_run(settings) as run:
        distill_stage(run, *profile_words)


def score(settings: EvalSettings) -> None:
    """Score a recipe's draft, or any draft against any target or on recorded responses."""
    if settings.is_without_recipe:
        score_without_recipe(settings)
        return
    if settings.endpoint is not None:
        score_run_on_endpoint(settings)
        return
    from distill.pipeline import checkpoints_stage, eval_stage, print_scores

    with own_run(of_words(settings.words, debug=settings.debug)) as run:
        if settings.checkpoints:
            checkpoints_stage(run)
            return
        eval_stage(run)
        if run.share.leads:
            print_scores(run)


def run_everything(settings: RunSettings) -> None:
    """Run all stages that are not finished."""
    from distill.pipeline import run_all

    with own_run(settings) as run:
        run_all(run)


def push(settings: PushSettings) -> None:
    """Push the draft of a run and print its URL, or write and list the files of a dry run."""
    from distill.hub.publish import dry_run, push_run

    if settings.dry_run is None:
        print(push_run(settings))
        return
    sizes = {name: (settings.dry_run / name).stat().st_size for name in dry_run(settings, settings.dry_run)}
    print("\n".join(f"{size / 1e6:10.2f} MB  {name}" for name, size in sizes.items()))
    print(f"{settings.dry_run}: {len(sizes)} files of {sum(sizes.values()) / 1e6:.1f} MB; nothing was sent")


class ServeFlags(ServeSettings):
    """Flags of `widedraft serve`: of a pair, or of a recipe in online mode."""

    words: RecipeWords = Field(
        default=(), description="A recipe in online mode, instead of a pair: its draft learns from the requests."
    )
    target: Annotated[fields.Target, Flag(metavar="A", absent="of RECIPE")] = "of RECIPE"
    draft: Annotated[fields.Draft, Flag(metavar="B", absent="of RECIPE")] = "of RECIPE"

    @model_validator(mode="after")
    def _recipe_or_pair(self) -> "ServeFlags":
        given = self.model_fields_set & OF_RECIPE
        if given if self.words else not given >= {"target", "draft"}:
            flags = ", ".join(sorted(map(flag_of, OF_RECIPE - {"target", "draft"})))
            raise UserError(f"Pass --target and --draft, or a RECIPE in online mode, which has keys for {flags} too.")
        return self


def serve_and_learn(settings: ServeFlags) -> None:
    """Train on the HTTP requests that the draft serves, after the stages before; see distill.online."""
    from distill.online.serving import SERVER_VARIABLE
    from distill.pipeline import run_until_trained
    from eval.http_server import listen

    with own_run(of_words(settings.words, debug=False)) as run:
        recipe, online = run.recipe, run.recipe.distill.online
        if online is None or online.stream is not None:
            raise UserError(f"{settings.words[0]}: serve needs distill.online, without a stream. Change the recipe.")
        listen(settings).close()  # an unusable port is reported before the hours of other stages
        models = {"target": recipe.target.path, "draft": str(run.init.path), "dtype": recipe.target.dtype}
        limits = {"num_speculative_tokens": online.num_speculative_tokens, "max_model_len": recipe.data.max_seq_len}
        own = settings.model_copy(update=models | limits)
        os.environ[SERVER_VARIABLE] = own.model_dump_json(exclude={"words"})
        run_until_trained(run)


OF_A_CHECKPOINT = ("checkpoint", "init", "target")


class ExportSettings(Section):
    """Settings of `export`: a recipe, a draft directory, or a checkpoint with its init and target."""

    words: RecipeWords = Field(default=(), description="A recipe or a draft directory, unless --checkpoint is given.")
    checkpoint: Annotated[Path | None, Flag(metavar="PATH")] = Field(
        default=None, description="A .pt file or directory in <run>/checkpoints."
    )
    init: Annotated[Path | None, Flag(metavar="DIR")] = Field(
        default=None, description="The initial draft of its training run: <run>/init."
    )
    target: Annotated[str | None, Flag(metavar="T")] = Field(
        default=None, description="Directory or hub id of its target."
    )
    revision: fields.Revision = "main"
    to: Annotated[Path | None, Flag(metavar="DIR")] = Field(default=None, description="Output directory.")
    form: Annotated[Form | None, Flag()] = Field(
        default=None,
        description="Form of a draft with a reduced vocabulary. whole: full-vocabulary head for any engine, no faster; "
        "own-tokenizer: for vLLM's use_heterogeneous_vocab.",
    )
    dtype: Annotated[fields.Dtype | None, Flag(absent="bfloat16; a recipe has export.dtype")] = Field(
        default=None, description="Dtype of its weights."
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
            raise UserError("Pass a recipe, a draft directory, or --checkpoint, --init, --target and --to.")
        if self.dtype is not None:
            raise UserError("--dtype needs --checkpoint. Set export.dtype in the recipe.")
        if (self.form is None) != (self.to is None):
            raise UserError("--form and --to need each other.")
        first, *others = self.words
        if self.is_folder and (others or self.debug or not (self.form or self.gguf)):
            raise UserError(f"{first}: is a draft directory. Pass only --form with --to, or --gguf.")
        return self

    @property
    def is_folder(self) -> bool:
        """True for a draft directory, False for a recipe."""
        return bool(self.words) and Path(self.words[0]).is_dir()


def export(settings: ExportSettings) -> None:
    """Write a draft directory, another form of it, and its GGUF files."""
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

    with own_run(of_words(settings.words, debug=settings.debug)) as run:
        export_stage(run)
        write_form(run.draft.path, settings)
        write_gguf_files(run.draft.path, run.recipe.run_name, settings.gguf)


def write_form(draft: Path, settings: ExportSettings) -> None:
    """Convert a draft with a reduced vocabulary to an engine's form, if requested."""
    if settings.form is None or settings.to is None:
        return
    from architectures.convert import convert_draft

    convert_draft(draft, settings.to, settings.form)
    print(f"   {settings.to}: form {settings.form} of {draft}; its README.md lists the engines that load it")


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
            print(f"   stored as F16, as their rows are not multiples of the {kind} block size: {first}{also}")


class CheckSettings(Section):
    """Settings of `check`."""

    recipe: RecipeFile
    words: Annotated[tuple[str, ...], Flag(metavar="RECIPE | key=value", is_word=True)] = Field(
        default=(), description="More recipes, and overrides of dotted keys for all of them."
    )
    debug: Debug = False
    device: Annotated[str | None, Flag(metavar="NAME", absent="this machine's GPU, else its CPU")] = Field(
        default=None,
        description="Estimate hours and memory for this device, such as nvidia-h100-80gb-hbm3.",
    )

    processes: Annotated[
        Annotated[int, Field(ge=1, le=MOST)] | None,
        Flag(metavar="N", absent="1; rejects stages that do not fit when split over 8"),
    ] = Field(default=None, description="Estimate the memory of one of N processes in every stage.")
    device_gib: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Flag(metavar="GIB", absent="the GPU's memory, if known"),
    ] = Field(default=None, description="Memory of one device; stages that need more are rejected.")
    verbose: bool = Field(default=False, description="Print the parts of every size, and notes on engines.")

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
    from distill.check import check_recipe, facts_table

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
            print(terminal(facts_table(rows, verbose=settings.verbose)), flush=True)
    if wrong:
        raise UserError(
            f"{len(wrong)} of {len(settings.recipes)} recipes have errors: {', '.join(map(str, wrong))}. "
            "Fix the errors listed above."
        )

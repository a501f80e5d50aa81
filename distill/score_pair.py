"""`widedraft eval` without a recipe: a draft against a target, or on recorded responses. No torch."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from omegaconf import OmegaConf
from pydantic import Field, model_validator

from architectures.errors import UserError
from architectures.hashes import fingerprint_checkpoint, fingerprint_value
from architectures.hub import resolve_checkpoint
from architectures.manifest import flat
from architectures.settings import WHOLE, DeviceMemoryGib, Flag, Holding, Section, TargetBits, TargetPlacement, flag_of
from distill.checkpoints.trust import OPTION, TrustCheckpoints
from distill.distributed import FLAG, Processes, joined, reject_spread, require_one_folder, require_same
from distill.recipe.recipe import Debug, RecipeWords, Scoring, load_scoring
from distill.run import owned
from eval.responses import asked
from eval.tasks import PromptWords, prompt_sources

if TYPE_CHECKING:
    from eval.scorecard_schema import RecordedScorecard, Scorecard

USAGE = "widedraft eval scores a RECIPE's draft, a draft against a target, or a draft on recorded responses."


class EvalSettings(Section):
    """Settings of `widedraft eval`: a recipe's draft, a draft against a target, or a draft on recorded responses."""

    words: RecipeWords = Field(default=(), description="A recipe first, unless --draft is given.")
    target: Annotated[str | None, Flag(metavar="A")] = Field(
        default=None, description="Folder or hub id of the model to draft for."
    )
    recorded: Annotated[Path | None, Flag(metavar="PATH")] = Field(
        default=None, description="The target's answers in its place: traces, or text of tensors."
    )
    draft: Annotated[str | None, Flag(metavar="B")] = Field(default=None, description="Folder or hub id of the draft.")
    prompts: PromptWords = ()
    baseline: Annotated[str | None, Flag(metavar="C")] = Field(
        default=None, description="Folder or hub id of a draft to compare B with, prompt by prompt."
    )
    checkpoints: bool = Field(
        default=False, description="Of a recipe: score every saved checkpoint too, for its tokens."
    )
    out: Annotated[Path | None, Flag(metavar="DIR", absent="eval-<draft's name>")] = Field(
        default=None, description="Where the scorecard goes."
    )
    target_placement: TargetPlacement = "whole"
    target_device_memory_gib: DeviceMemoryGib = None
    target_bits: TargetBits = None
    debug: Debug = False
    trust_checkpoints: TrustCheckpoints = False
    processes: Processes = None

    @property
    def is_for_one(self) -> bool:
        """See distill.distributed."""
        return self.recorded is not None

    @property
    def holding(self) -> Holding:
        """How the target is held; a recipe has its own keys for that."""
        return Holding(self.target_placement, self.target_device_memory_gib, self.target_bits)

    @property
    def is_without_recipe(self) -> bool:
        return bool(self.prompts) or any(each is not None for each in (self.target, self.draft, self.recorded))

    @model_validator(mode="after")
    def _recipe_or_pair(self) -> "EvalSettings":
        if self.is_without_recipe and (self.checkpoints or self.debug):
            raise UserError("--checkpoints and --debug need a RECIPE. Leave them out.")
        if not self.is_without_recipe and (not self.words or self.out is not None or self.baseline is not None):
            raise UserError(f"{USAGE} --out and --baseline are for the last two.")
        if self.holding != WHOLE and (self.target is None or self.recorded is not None):
            raise UserError("--target-placement, its memory and --target-bits need --target; a recipe has keys.")
        if (mistake := self.holding.mistake) is not None:
            raise UserError(f"--target-placement: {mistake}")
        if self.processes is not None and self.is_for_one:
            raise UserError(f"{FLAG}: recorded responses are scored by one process. Leave it out.")
        if self.trust_checkpoints and not self.checkpoints:
            raise UserError(f"{OPTION}: needs --checkpoints, which reads them. Leave it out.")
        return self


def score_without_recipe(settings: EvalSettings) -> None:
    from eval.scorecard_tables import summary

    scoring = load_scoring(settings.words)
    out = settings.out or Path(f"eval-{Path(str(settings.draft)).name}")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file. Name a directory.")
    card = score_pair(settings, scoring, out) if settings.recorded is None else score_recorded(settings, scoring, out)
    print(f"scorecard: {out / 'scorecard.md'}\n\n{summary(card)}")


def score_pair(settings: EvalSettings, scoring: Scoring, out: Path) -> "Scorecard":
    from eval.engines.external_generate import responses_by
    from eval.prompts import load_in_turn
    from eval.scorecard import score_drafts

    if settings.target is None or settings.draft is None or not settings.prompts:
        raise UserError(f"{USAGE} Give --target, --draft and --prompts, or --recorded and --draft.")
    if scoring.eval.tasks:
        raise UserError("eval.tasks and --prompts name the prompts twice. Leave one of them out.")
    prompts = load_in_turn(prompt_sources(settings.prompts), most=scoring.eval.num_prompts)
    named = {"baseline": settings.baseline, "draft": settings.draft}  # the scorecard is about the last
    target = resolve_checkpoint(settings.target)
    drafts = {name: resolve_checkpoint(each) for name, each in named.items() if each is not None}
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
                "prompts": fingerprint_value([asked(prompt) for prompt in prompts]),
                **{key: str(value) for key, value in flat(scoring.model_dump(mode="json")).items()},
            }
            require_same(share, "models, prompts and settings", same)
        how = {"seed": scoring.seed, "answered_by": kind, "holding": settings.holding, "share": share}
        return score_drafts(target, drafts, prompts, scoring.eval, out, **how)


def score_recorded(settings: EvalSettings, scoring: Scoring, out: Path) -> "RecordedScorecard":
    from eval.recorded import USED_KEYS, read_recorded_text, read_recorded_traces, score_recording

    path, names = settings.recorded, ("target", "baseline")
    if given := [flag_of(name) for name in names if getattr(settings, name) is not None]:
        raise UserError(f"{' and '.join(given)} must be left out: --recorded scores one draft without its target.")
    if settings.draft is None:
        raise UserError("--draft must be given: --recorded scores one.")
    if path is None or not path.exists():
        raise UserError(f"--recorded {path}: not found. Give a directory of responses, or a text file of tensors.")
    if path.is_dir() == bool(settings.prompts):
        raise UserError("--prompts: needed with a text file of responses, not used with a directory, which has them.")
    keys = {str(key) for key in OmegaConf.from_dotlist(list(settings.words)).get("eval", {})}
    if ignored := sorted(keys - USED_KEYS):
        used = ", ".join(sorted(USED_KEYS))
        raise UserError(f"eval.{', eval.'.join(ignored)}: not used with --recorded, which reads only {used}.")
    if not scoring.generate.is_local:
        raise UserError("generate: not used with --recorded, whose responses are there. Leave it out.")

    draft = resolve_checkpoint(settings.draft)
    with owned(out):
        if path.is_dir():
            recording = read_recorded_traces(path, draft)
        else:
            sources = [source.path for source in prompt_sources(settings.prompts) if source.task is None]
            if len(sources) != 1 or len(settings.prompts) != 1:
                raise UserError(f"--prompts {' '.join(settings.prompts)}: must name one file, a row per response.")
            recording = read_recorded_text(path, str(sources[0]), draft)
        config = scoring.eval
        if "num_prompts" not in keys:  # a pass over a response is cheap: use all of them
            config = config.model_copy(update={"num_prompts": recording.num_prompts})
        return score_recording(recording, draft, config, out, seed=scoring.seed)

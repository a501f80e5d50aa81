"""What `widedraft eval` scores where no recipe says it: a pair of models, or a draft on recorded answers. No torch."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from omegaconf import OmegaConf
from pydantic import Field, model_validator

from architectures.checkpoints.fingerprint import fingerprint_checkpoint, fingerprint_value
from architectures.checkpoints.manifest import flat
from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.flags import Flag, flag_of
from architectures.settings.holding import WHOLE, Holding
from architectures.settings.kinds import (
    DeviceMemoryGib,
    HostMemoryGib,
    Rehash,
    TargetBits,
    TargetPlacement,
)
from architectures.targets.target import resolve_checkpoint
from distill.checkpoints.trust import OPTION, TrustCheckpoints
from distill.ranks.joining import joined
from distill.ranks.launching import FLAG, Processes
from distill.ranks.one_folder import require_one_folder
from distill.ranks.same import refuse_spread, require_same
from distill.recipe.recipe import Scoring, load_scoring
from distill.recipe.words import Debug, RecipeWords
from distill.run.run_folder import owned
from eval.answers.traces import asked
from eval.tasks import PromptWords, prompt_sources

if TYPE_CHECKING:
    from eval.prompts import Prompt
    from eval.recorded import Recording


class EvalSettings(Section):
    """What is scored: a recipe's draft, a draft against a target on prompts, or a draft on recorded answers."""

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
    target_host_memory_gib: HostMemoryGib = None
    target_bits: TargetBits = None
    debug: Debug = False
    rehash: Rehash = False
    trust_checkpoints: TrustCheckpoints = False
    processes: Processes = None

    @property
    def is_for_one(self) -> bool:
        """See distill.ranks.launching."""
        return self.recorded is not None

    @property
    def holding(self) -> Holding:
        """How the target is held; a recipe says it of its own."""
        return Holding(
            self.target_placement, self.target_device_memory_gib, self.target_host_memory_gib, self.target_bits
        )

    @property
    def is_without_recipe(self) -> bool:
        return bool(self.prompts) or any(each is not None for each in (self.target, self.draft, self.recorded))

    @model_validator(mode="after")
    def _recipe_or_pair(self) -> "EvalSettings":
        if self.is_without_recipe and self.checkpoints:
            raise UserError("--checkpoints are those of a recipe's training. Give the RECIPE alone, or leave it out.")
        if self.is_without_recipe and self.debug:
            raise UserError("--debug shrinks a recipe, and a draft named by itself has none. Leave it out.")
        if not self.is_without_recipe and (not self.words or self.out is not None or self.baseline is not None):
            raise UserError(
                "widedraft eval needs a RECIPE alone, or --target, --draft and --prompts, or --recorded and --draft, "
                "then perhaps --baseline and --out."
            )
        if self.holding != WHOLE and (self.target is None or self.recorded is not None):
            raise UserError(
                "--target-placement, its memory and --target-bits are of a --target. A recipe says them of its own, in "
                "section target; answers that are recorded need no target."
            )
        if (mistake := self.holding.mistake) is not None:
            raise UserError(f"--target-placement: {mistake}")
        if self.processes is not None and self.is_for_one:
            raise UserError(f"{FLAG} goes with a target that answers: recorded answers are read by one process.")
        if self.trust_checkpoints and not self.checkpoints:
            raise UserError(f"{OPTION} goes with --checkpoints: nothing else here reads any. Leave it out.")
        return self


def score_without_recipe(settings: EvalSettings) -> None:
    """Score a draft against a target, or on recorded answers.

    Raises:
        UserError: If something is missing, or is of the other.
    """
    if settings.recorded is not None:
        require_recorded_words(settings, settings.recorded)
        score_recorded(settings, settings.recorded, str(settings.draft))
        return
    if settings.target and settings.draft and settings.prompts:
        score_pair(settings, settings.target, settings.draft)
        return
    missing = [flag_of(name) for name in ("target", "draft", "prompts") if not getattr(settings, name)]
    raise UserError(
        f"{' and '.join(missing)} must be given too. A draft is scored against its target on prompts, or on "
        "answers recorded from it (--recorded)."
    )


def score_pair(settings: EvalSettings, target: str, draft: str) -> None:
    """Score one draft against one target."""
    from eval.engines.generate import responses_by
    from eval.prompts import load_in_turn
    from eval.scorecard import score_drafts
    from eval.scorecard_tables import summary

    scoring = load_scoring(settings.words)
    if scoring.eval.tasks:
        raise UserError("eval.tasks must be left out beside --prompts. Name the prompts once.")
    out = output_folder(settings.out, draft)
    prompts = load_in_turn(prompt_sources(settings.prompts), most=scoring.eval.num_prompts)
    named = {"baseline": settings.baseline, "draft": draft}  # the last is the one the verdict is about
    folder = resolve_checkpoint(target)
    drafts = {name: resolve_checkpoint(each) for name, each in named.items() if each is not None}
    with (
        joined() as share,
        owned(out) if share.leads else nullcontext(),
        responses_by(scoring.generate) as kind,
    ):
        refuse_spread(share, settings.holding)
        require_one_folder(share, out)
        if share.count > 1:
            told = told_apart({"target": folder, **drafts}, prompts, scoring)
            require_same(share, "models, prompts and settings", told)
        how = {"seed": scoring.seed, "answered_by": kind, "holding": settings.holding, "share": share}
        scorecard = score_drafts(folder, drafts, prompts, scoring.eval, out, **how)
    print(f"scorecard: {out / 'scorecard.md'}\n\n{summary(scorecard)}")


def told_apart(models: Mapping[str, Path], prompts: "Sequence[Prompt]", scoring: Scoring) -> dict[str, str]:
    """All that decides a scorecard, for processes that must have the same."""
    return {
        **{name: fingerprint_checkpoint(folder) for name, folder in models.items()},
        "prompts": fingerprint_value([asked(prompt) for prompt in prompts]),
        **{key: str(value) for key, value in flat(scoring.model_dump(mode="json")).items()},
    }


def score_recorded(settings: EvalSettings, recorded: Path, name: str) -> None:
    """Score one draft on recorded answers of a target."""
    from eval.recorded import USED_KEYS, score_recording
    from eval.scorecard_tables import summary

    scoring = load_scoring(settings.words)
    if not scoring.generate.is_local:
        raise UserError("generate must be left out beside --recorded: the answers are the recorded ones.")
    require_used(settings.words, USED_KEYS)
    draft, out = resolve_checkpoint(name), output_folder(settings.out, name)
    with owned(out):
        recording = read_recording(recorded, settings.prompts, draft)
        config = scoring.eval
        if "num_prompts" not in keys_of_eval(settings.words):  # a pass over an answer is cheap
            config = config.model_copy(update={"num_prompts": recording.num_prompts})
        scorecard = score_recording(recording, draft, config, out, seed=scoring.seed)
    print(f"scorecard: {out / 'scorecard.md'}\n\n{summary(scorecard)}")


def read_recording(recorded: Path, prompts: Sequence[str], draft: Path) -> "Recording":
    """The answers in a folder of traces, or in a text file beside its prompts."""
    from eval.recorded import read_recorded_text, read_recorded_traces

    if recorded.is_dir():
        return read_recorded_traces(recorded, draft)
    return read_recorded_text(recorded, recorded_prompts(recorded, prompts), draft)


def recorded_prompts(recorded: Path, prompts: Sequence[str]) -> str:
    """The one file of prompts that stands beside a text of answers."""
    paths = [source.path for source in prompt_sources(prompts) if source.task is None]
    if len(paths) != 1 or len(prompts) != 1:
        raise UserError(
            f"--prompts must name one file beside {recorded}, got {' and '.join(prompts)}. It holds a "
            "plain row for each answer, in their order."
        )
    return str(paths[0])


def require_recorded_words(settings: EvalSettings, recorded: Path) -> None:
    """Raise UserError unless the settings are those of recorded answers."""
    if settings.target is not None:
        raise UserError(
            "--target must be left out beside --recorded: its answers stand in its place. Give one of them."
        )
    if settings.baseline is not None:
        raise UserError("--baseline must be left out beside --recorded: one draft is scored at a time.")
    if settings.draft is None:
        raise UserError("--draft must be given too. Recorded answers score a draft.")
    if not recorded.exists():
        raise UserError(f"{recorded}: is not there. Give a folder of traces, or a text file of tensors.")
    if recorded.is_dir() and settings.prompts:
        raise UserError(f"--prompts must be left out: the traces in {recorded} hold theirs.")
    if not recorded.is_dir() and not settings.prompts:
        raise UserError(f"--prompts must be given too: {recorded} holds answers without their prompts.")


def require_used(words: Sequence[str], used: set[str]) -> None:
    """Raise UserError if words that were read as settings set a key that scoring without a target would ignore."""
    ignored = sorted(keys_of_eval(words) - used)
    if ignored:
        names, counted = (", ".join(f"eval.{key}" for key in keys) for keys in (ignored, sorted(used)))
        raise UserError(
            f"{names} must be left out beside --recorded: answers and temperature are the recorded ones, nothing is "
            f"timed. What counts is {counted}."
        )


def output_folder(out: Path | None, draft: str) -> Path:
    """Where a scorecard goes.

    Raises:
        UserError: If that is no folder.
    """
    out = out or Path(f"eval-{Path(draft).name}")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file, and a scorecard is a folder of files. Choose another place.")
    return out


def keys_of_eval(words: Sequence[str]) -> set[str]:
    """The keys of section eval that words set."""
    return {str(key) for key in OmegaConf.from_dotlist(list(words)).get("eval", {})}

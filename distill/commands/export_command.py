"""`widedraft export`: the draft of a recipe's run, or of any checkpoint of ours; as GGUF files too.

No torch until it runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from architectures.errors import UserError
from architectures.files.number_types import Dtype
from architectures.files.section import Section
from architectures.gguf_export.names import GgufKind, file_name
from architectures.settings.flags import Flag, flag_of
from architectures.settings.kinds import Rehash, Revision
from distill.checkpoints.trust import TrustCheckpoints
from distill.commands.recipe_commands import of_words, own_run, trust_if_asked
from distill.recipe.words import Debug, RecipeWords

OF_A_CHECKPOINT = ("checkpoint", "init", "target", "to")


class ExportSettings(Section):
    """What is exported: the draft of a recipe's run, or a checkpoint and what it belongs to."""

    words: RecipeWords = Field(default=(), description="A recipe, unless --checkpoint is given.")
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
    to: Annotated[Path | None, Flag(metavar="DIR")] = Field(default=None, description="The draft folder to write.")
    dtype: Annotated[Dtype | None, Flag(absent="bfloat16; a recipe has export.dtype")] = Field(
        default=None, description="Number type of its weights."
    )
    gguf: Annotated[tuple[GgufKind, ...], Flag(is_repeated=True)] = Field(
        default=(), description="Also write DIR/<name>-KIND.gguf, for llama.cpp."
    )
    debug: Debug = False
    rehash: Rehash = False
    trust_checkpoints: TrustCheckpoints = False

    @property
    def is_of_a_checkpoint(self) -> bool:
        return any(getattr(self, name) is not None for name in OF_A_CHECKPOINT)

    @model_validator(mode="after")
    def _recipe_or_checkpoint(self) -> "ExportSettings":
        missing = [flag_of(name) for name in OF_A_CHECKPOINT if getattr(self, name) is None]
        if not self.is_of_a_checkpoint and (not self.words or self.dtype is not None):
            raise UserError(
                "widedraft export needs a RECIPE alone, whose export.dtype is its number type, or --checkpoint, "
                "--init, --target and --to, then perhaps --dtype."
            )
        if self.is_of_a_checkpoint and missing:
            raise UserError(f"{' and '.join(missing)} must be given too. A checkpoint holds weights and nothing else.")
        if self.is_of_a_checkpoint and (self.words or self.debug):
            given = "--debug" if self.debug else self.words[0]
            raise UserError(f"{given}: is of a recipe, and --checkpoint is exported without one. Leave it out.")
        return self


def export(settings: ExportSettings) -> None:
    """Make a draft folder, and its GGUF files."""
    trust_if_asked(settings)
    if settings.checkpoint and settings.init and settings.target and settings.to:
        export_named(settings, settings.checkpoint, settings.init, settings.target, settings.to)
        write_gguf_files(settings.to, settings.to.resolve().name, settings.gguf)
        return
    from distill.stages.running import export_stage

    with own_run(of_words(settings.words, debug=settings.debug)) as named:
        export_stage(named.run)
        write_gguf_files(named.run.draft.path, named.run.recipe.run_name, settings.gguf)


def export_named(settings: ExportSettings, checkpoint: Path, init: Path, target: str, to: Path) -> None:
    """Make a draft folder of one checkpoint.

    Raises:
        UserError: If the checkpoint is damaged, or `export_any` refuses it.
    """
    from architectures.targets.target import resolve_checkpoint
    from distill.exporting.export import export_any

    folder = resolve_checkpoint(target, revision=settings.revision)
    export_any(checkpoint, init, to, target=folder, dtype=settings.dtype or "bfloat16")
    print(f"   {to}: from {checkpoint}")


def write_gguf_files(folder: Path, name: str, kinds: Sequence[GgufKind]) -> None:
    """Write a draft folder as GGUF files into itself, and say what each is."""
    if not kinds:
        return
    from architectures.gguf_export.files import export_gguf

    for kind in dict.fromkeys(kinds):
        written = export_gguf(folder, folder / file_name(name, kind), kind, name=name)
        print(f"   {written.path}: {written.num_bytes / 1e6:,.1f} MB")
        if written.fallen_back:
            first, more = written.fallen_back[0], len(written.fallen_back) - 1
            also = f" and {more} more" if more else ""
            print(f"   F16 in it, since their rows are no whole blocks of {kind}: {first}{also}")

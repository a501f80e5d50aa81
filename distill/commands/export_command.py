"""`widedraft export`: the draft of a run or of any checkpoint; in the form that an engine loads; as GGUF files.

No torch until it runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from architectures.errors import UserError
from architectures.files.number_types import Dtype
from architectures.files.section import Section
from architectures.gguf_format import GgufKind, file_name
from architectures.settings.flags import Flag
from architectures.settings.kinds import Revision
from architectures.vocabulary import Form
from distill.checkpoints.trust import TrustCheckpoints
from distill.commands.recipe_commands import of_words, own_run, trust_if_asked
from distill.recipe.words import Debug, RecipeWords

OF_A_CHECKPOINT = ("checkpoint", "init", "target")


class ExportSettings(Section):
    """What is exported: the draft of a recipe's run, a draft folder, or a checkpoint and what it belongs to."""

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
        """Whether a draft folder is named, not a recipe."""
        return bool(self.words) and Path(self.words[0]).is_dir()


def export(settings: ExportSettings) -> None:
    """Write a draft folder, another form of it, and its GGUF files."""
    trust_if_asked(settings.trust_checkpoints)
    if settings.checkpoint and settings.init and settings.target and settings.to:
        from architectures.targets.target import resolve_checkpoint
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
    from distill.stages.running import export_stage

    with own_run(of_words(settings.words, debug=settings.debug)) as named:
        export_stage(named.run)
        write_form(named.run.draft.path, settings)
        write_gguf_files(named.run.draft.path, named.run.recipe.run_name, settings.gguf)


def write_form(draft: Path, settings: ExportSettings) -> None:
    """Write a draft with a reduced vocabulary in the form that an engine loads, if one is asked for."""
    if settings.form is None or settings.to is None:
        return
    from architectures.convert import convert_draft

    convert_draft(draft, settings.to, settings.form)
    print(f"   {settings.to}: form {settings.form} of {draft}; its README.md says which engines load it")


def write_gguf_files(folder: Path, name: str, kinds: Sequence[GgufKind]) -> None:
    """Write a draft folder as GGUF files into itself, and say what each is."""
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

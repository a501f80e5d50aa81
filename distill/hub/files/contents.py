"""The folder that is published: the draft in every form that engines load, its evidence, its plots and its card.

A draft with a whole head lies at the root. Of one whose head outputs some ids alone the root is the form that every
engine loads, small-head/ what widedraft decodes with, and own-tokenizer/ what vLLM decodes with as fast.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from architectures.checkpoints.generation_settings import SETTINGS_NAME, write_assistant_settings
from architectures.checkpoints.manifest import MANIFEST_NAME
from architectures.checkpoints.target_files import CARRIED_FILES, bytes_below
from architectures.convert import convert_draft
from architectures.errors import UserError
from architectures.families import family_of
from architectures.files.atomic import write_json
from architectures.files.reading import read_json_object
from architectures.gguf_export import export_gguf
from architectures.gguf_format import GgufKind, file_name
from architectures.pruning.plan import PLAN_NAME
from architectures.settings.recipe_command import command_of
from architectures.shapes.context_length import context_length, has_scaled_positions
from architectures.targets.target import read_config
from architectures.vocabulary import CONFIG_KEY, DRAFT_VOCABULARY_NAME

SMALL_HEAD, OWN_TOKENIZER = "small-head", "own-tokenizer"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
OF_A_DRAFT = ("config.json", *CARRIED_FILES, DRAFT_VOCABULARY_NAME, PLAN_NAME)


@dataclass(frozen=True)
class Forms:
    """Which folders of the repository hold which form.

    Attributes:
        small: Whether the head outputs some ids alone, so that there are several.
        refused: Why there is no own-tokenizer/; None where there is, or where none is wanted.
        gguf: Names of the files for llama.cpp, which say what the root says.
    """

    small: bool
    refused: str | None = None
    gguf: tuple[str, ...] = ()

    @property
    def folders(self) -> list[str]:
        """Of every form, the root as "."."""
        extra = [SMALL_HEAD, *([] if self.refused else [OWN_TOKENIZER])] if self.small else []
        return [".", *extra]


def lay_out_forms(draft: Path, target: Path, out: Path, *, lookahead: int | None) -> Forms:
    """Write the draft in every form.

    Args:
        draft: The folder of a run.
        target: The folder of the model it drafts for.
        out: An empty folder.
        lookahead: Tokens that transformers proposes; None where nobody scored it.

    Raises:
        UserError: If the draft brings code, or has not its target's tokenizer, template or context.
    """
    config = read_config(draft)
    refuse_own_code(config, draft)
    require_files_of(target, draft)
    if CONFIG_KEY not in config:
        copy_draft(draft, out)
        forms = Forms(small=False)
    else:
        forms = lay_out_small_head(draft, out)
    for name in forms.folders:
        fit_context(out / name, target)
        if lookahead is not None:
            write_assistant_settings(out / name, lookahead=lookahead)
    return forms


def lay_out_small_head(draft: Path, out: Path) -> Forms:
    """The head grown back at the root, the draft itself, and a model of its own tokens if its tokenizer allows one."""
    copy_draft(draft, out / SMALL_HEAD)
    whole = out / "whole"
    convert_draft(draft, whole, "whole")
    for path in whole.iterdir():
        if path.name != MANIFEST_NAME:
            path.rename(out / path.name)
    shutil.rmtree(whole)
    try:
        convert_draft(draft, out / OWN_TOKENIZER, "own-tokenizer")
    except UserError as error:
        return Forms(small=True, refused=str(error).removeprefix(f"{draft}: "))
    (out / OWN_TOKENIZER / MANIFEST_NAME).unlink()
    return Forms(small=True)


def lay_out_gguf(out: Path, kinds: Sequence[GgufKind], *, name: str, draft: Path) -> tuple[str, ...]:
    """Write the form at the root as files for llama.cpp; returns their names.

    Raises:
        UserError: If llama.cpp would compute the draft otherwise; it names the draft's own folder.
    """
    try:
        for kind in kinds:
            export_gguf(out, out / file_name(name, kind), kind, name=name)
    except UserError as error:
        raise UserError(str(error).replace(str(out), str(draft))) from error
    return tuple(file_name(name, kind) for kind in kinds)


def copy_draft(draft: Path, out: Path) -> None:
    """Copy the files of a draft that an engine, transformers or widedraft reads, and no other."""
    out.mkdir(parents=True, exist_ok=True)
    for pattern in (*OF_A_DRAFT, *WEIGHTS):
        for path in draft.glob(pattern):
            if path.is_dir():
                shutil.copytree(path, out / path.name)
            else:
                shutil.copyfile(path, out / path.name)


def again() -> str:
    """What mends a draft folder."""
    return f"Export the draft again: {command_of('export')}."


def refuse_own_code(config: dict[str, object], draft: Path) -> None:
    """Raise UserError for a draft that asks engines to run code of its own."""
    if "auto_map" in config:
        raise UserError(f"{draft / 'config.json'}: auto_map asks to run remote code, which is not published. {again()}")


def require_files_of(target: Path, draft: Path) -> None:
    """Raise UserError unless tokenizer and chat template are the target's, byte for byte."""
    for name in CARRIED_FILES:
        if name != SETTINGS_NAME and bytes_below(target / name) != bytes_below(draft / name):
            raise UserError(f"{draft / name}: is not that of the target {target}. {again()}")


def fit_context(folder: Path, target: Path) -> None:
    """Have a draft say that it takes texts as long as its target's: engines stop drafting, or fail, past its own.

    Plain rotary positions have no table that would end. Others do, or are scaled for a length.

    Raises:
        UserError: If its positions end before the target's.
    """
    file = folder / "config.json"
    config = read_json_object(file, again())
    ours, theirs = (
        context_length(of, where=str(where / "config.json"))
        for of, where in ((config, folder), (read_config(target), target))
    )
    if ours is None or theirs is None or ours.tokens >= theirs.tokens:
        return
    family = family_of(config, where=str(file))
    if "positions" in family.outside or has_scaled_positions(config, str(file)) or family.context_key is None:
        raise UserError(
            f"{folder}: takes texts of {ours.tokens} tokens ({ours.origin}) and its target of {theirs.tokens}; engines "
            "stop drafting, or fail, past that. Cut the draft out of its target, or out of a model as long."
        )
    write_json({**config, family.context_key: theirs.tokens}, file)

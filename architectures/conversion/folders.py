"""What each form of a small-head draft holds, written as a folder that appears whole or not at all."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from architectures.checkpoints.fingerprint import fingerprint_checkpoint, read_json_file
from architectures.checkpoints.generation_settings import SETTINGS_NAME, read_generation_settings
from architectures.checkpoints.manifest import MANIFEST_NAME, write_manifest
from architectures.checkpoints.target_files import TEMPLATES, carry_files, require_tokenizer
from architectures.checkpoints.weights import TensorInfo, require_replaceable, write_weights
from architectures.compatibility import refuse_misleading_name, without_vllm
from architectures.conversion.forms import Form
from architectures.conversion.rows import embedding_with_unknown, grown_head, head_with_unknown
from architectures.conversion.small_draft import SmallDraft, read_small_draft
from architectures.conversion.tokenizer_cut import cut_ids, cut_settings, cut_tokenizer
from architectures.draft_vocabulary.card import CARD_NAME, own_tokenizer_card, whole_head_card
from architectures.errors import UserError
from architectures.files.atomic import staged_folder, write_json, write_text
from architectures.files.reading import read_text
from architectures.pruning.prune import require_numbers
from architectures.shapes.shape import checkpoint_tensors
from architectures.small_head.record import CONFIG_KEY

TOKENIZER_NAME = "tokenizer.json"
SETTINGS_OF_TOKENIZER = "tokenizer_config.json"  # special_tokens_map.json says again what stands there
TOKENIZER_MIB = 512  # as eval.models.loading
COPY_TOKENIZER = "Copy the target's tokenizer files there, or use --form whole."


def convert_draft(folder: Path, out: Path, form: Form) -> None:
    """Write a draft with a small head in another form.

    Args:
        folder: The draft.
        out: The folder; an earlier conversion there is replaced.
        form: Which.

    Raises:
        UserError: If the draft has no small head or is damaged, the form is not for it, or out holds something else.
    """
    draft = read_small_draft(folder)
    require_tokenizer(folder)
    refuse_misleading_name(str(out.absolute()))
    require_replaceable(out, MANIFEST_NAME, reading=folder, stage="convert")
    write = {"whole": write_whole, "own-tokenizer": write_own_tokenizer}[form]
    with staged_folder(out) as staged:
        write(draft, staged)
        inputs = {"draft": fingerprint_checkpoint(folder)}
        write_manifest(staged, stage="convert", inputs=inputs, form=form, draft=str(folder))


def write_whole(draft: SmallDraft, folder: Path) -> None:
    """The form that any engine loads."""
    vocabulary, head = draft.vocabulary, draft.family.weight("head")
    ids_K, pushed_K = ids_and_pushed(draft)
    write_changed(draft, folder, {head: lambda head_KH: grown_head(head_KH, ids_K, vocabulary.vocab_size, pushed_K)})
    config = {name: value for name, value in draft.config.items() if name != CONFIG_KEY}
    write_json(config, folder / "config.json")
    carry_files(draft.folder, folder)
    *others, last = draft.family.head_is_embedding or (None,)  # engines that take the head to be the embedding
    tied_in = f"{', '.join(others)} and {last}" if others else last
    card = whole_head_card(vocabulary, tied_in=tied_in)
    write_text(card, folder / CARD_NAME)


def write_own_tokenizer(draft: SmallDraft, folder: Path) -> None:
    """The form for vLLM's use_heterogeneous_vocab."""
    reason = without_vllm(draft.shape.family)
    if reason is not None:
        raise UserError(f"{draft.folder}: {reason}, and no other engine takes this form. Use --form whole.")
    vocabulary, family = draft.vocabulary, draft.family
    ids_K, pushed_K = ids_and_pushed(draft)

    def cut_embedding(embedding_VH: Tensor) -> Tensor:
        return embedding_with_unknown(embedding_VH, ids_K, vocabulary.unknown_id)

    unknown = write_own_tokens(draft, folder)
    changes = {
        family.weight("embedding"): cut_embedding,
        family.weight("head"): lambda head_KH: head_with_unknown(head_KH, pushed_K),
    }
    write_changed(draft, folder, changes)
    config = {name: value for name, value in draft.config.items() if name != CONFIG_KEY}
    config[family.keys["vocab"]] = len(vocabulary.ids) + 1
    write_json(cut_ids(config, vocabulary.ids), folder / "config.json")
    write_json(cut_ids(read_generation_settings(draft.folder), vocabulary.ids), folder / SETTINGS_NAME)
    write_text(own_tokenizer_card(vocabulary, unknown), folder / CARD_NAME)


def ids_and_pushed(draft: SmallDraft) -> tuple[Tensor, Tensor]:
    """ids_K that the head outputs, and pushed_K: which of them training only pushed down."""
    ids_K = torch.tensor(draft.vocabulary.ids)
    return ids_K, torch.isin(ids_K, torch.tensor(draft.vocabulary.unused_ids, dtype=ids_K.dtype))


def write_own_tokens(draft: SmallDraft, folder: Path) -> str:
    """Write a tokenizer of the kept tokens; returns the text of its unknown one."""
    where = str(draft.folder / TOKENIZER_NAME)
    cut = cut_tokenizer(read_tokenizer(draft.folder), draft.vocabulary.ids, where=where)
    unknown = cut["model"]["unk_token"]
    write_json(cut, folder / TOKENIZER_NAME)
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": unknown}  # which takes the file as it is
    settings = read_json_file(draft.folder / SETTINGS_OF_TOKENIZER)
    write_json(cut_settings(settings, cut["model"]["vocab"], unknown) | own, folder / SETTINGS_OF_TOKENIZER)
    copy_templates(draft.folder, folder)
    return unknown


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """What a draft's tokenizer.json holds, as the tokenizers library writes it today.

    Raises:
        UserError: If there is none, or that library cannot read it.
    """
    file = folder / TOKENIZER_NAME
    if not file.is_file():
        raise UserError(f"{folder}: holds no {TOKENIZER_NAME}, the one kind of file that is cut. {COPY_TOKENIZER}")
    text = read_text(file, remedy=COPY_TOKENIZER, most_mib=TOKENIZER_MIB)
    try:
        return json.loads(Tokenizer.from_str(text).to_str())
    except Exception as error:  # the library raises plain Exceptions
        if type(error) is not Exception:
            raise
        raise UserError(f"{file}: could not be read ({error}). {COPY_TOKENIZER}") from error


def copy_templates(source: Path, folder: Path) -> None:
    """Take over what frames a conversation."""
    for name in TEMPLATES:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
        elif (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def write_changed(draft: SmallDraft, folder: Path, changes: dict[str, Callable[[Tensor], Tensor]]) -> None:
    """Write the draft's tensors, some of them with other rows; refuse those that hold no numbers."""
    changed: dict[str, Any] = {name: change(require_numbers(draft.weights, name)) for name, change in changes.items()}
    layout = {name: draft.weights.info[name] for name in checkpoint_tensors(draft.shape)}
    layout |= {name: TensorInfo(tensor.dtype, tuple(tensor.shape)) for name, tensor in changed.items()}

    def read(name: str) -> Tensor:
        return changed[name] if name in changed else require_numbers(draft.weights, name)

    write_weights(layout, read, folder)

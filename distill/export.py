"""Export of checkpoints to Hugging Face directories: the init directory with the trained tensors.

Tokenizer, chat template, generation config, special ids and vocab_size are the target's. `saved_models` scores
checkpoints without exporting each.
"""

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.checkpoint import TensorInfo, open_weights, require_replaceable, stored_tensors, write_weights
from architectures.errors import UserError
from architectures.families import FAMILIES, family_of
from architectures.families.family import Family
from architectures.files import staged_folder, write_json, write_text
from architectures.hub import read_config
from architectures.manifest import (
    MANIFEST_NAME,
    fingerprint_checkpoint,
    fingerprint_value,
    sha256_of_file,
    write_manifest,
)
from architectures.pruning.plan import PLAN_NAME
from architectures.pruning.prune import with_dtype
from architectures.settings import command_of
from architectures.target_files import carry_files, require_tokenizer, with_special_ids
from architectures.vocabulary import (
    CARD_NAME,
    CONFIG_KEY,
    DRAFT_VOCABULARY_NAME,
    DraftVocabulary,
    read_draft_vocabulary,
    small_head_card,
    write_draft_vocabulary,
)
from architectures.vocabulary_head import fit_rows, with_unknown
from distill.checkpoints.checkpoint_files import OF_A_FILE, find_checkpoints, is_checkpoint
from distill.checkpoints.folders import damage
from distill.checkpoints.saving import algorithms_of, read_model, read_state
from distill.data.batches import UnknownInputs
from distill.run import Run, shape_of
from distill.stage_inputs import draft_inputs
from eval.models import SavedModel, load_model
from eval.scorecard_schema import UNDISTILLED

STUDENT_PREFIX = "student.lm."  # of the language model in DistillModel


def export_draft(run: Run, checkpoint: Path, *, finished: bool) -> None:
    """Write <run>/draft from a checkpoint, and record if its training run has finished."""

    def finish(folder: Path) -> None:
        more = {"checkpoint": checkpoint.name, "chat_template_kwargs": run.recipe.data.chat_template_kwargs}
        run.record(run.draft, draft_inputs(run), folder, finished=finished, **more)

    export_checkpoint(
        checkpoint,
        run.init.path,
        run.draft.path,
        target=run.target,
        dtype=run.recipe.export.dtype,
        unknown_inputs=run.recipe.distill.unknown_inputs > 0,
        finish=finish,
    )


def export_any(checkpoint: Path, init: Path, out: Path, *, target: Path, dtype: str) -> None:
    """Write a draft directory from a checkpoint without a recipe; arguments and errors as for `export_checkpoint`."""
    if not checkpoint.is_file() and not is_checkpoint(checkpoint):
        raise UserError(f"{checkpoint}: no such checkpoint. Pass a .pt file or a directory in a run's checkpoints.")
    if (problem := damage(checkpoint)) is not None:
        raise UserError(f"{checkpoint}: truncated or damaged ({problem}). Use another checkpoint of the training run.")
    read_config(init)
    require_tokenizer(target)
    inputs = {
        "checkpoint": fingerprint_saved(checkpoint),
        "init": fingerprint_checkpoint(init),
        "target": fingerprint_checkpoint(target),
    }

    def finish(folder: Path) -> None:
        write_manifest(folder, stage="export", inputs=inputs, checkpoint=str(checkpoint), init=str(init), dtype=dtype)

    export_checkpoint(
        checkpoint,
        init,
        out,
        target=target,
        dtype=dtype,
        unknown_inputs=UnknownInputs.__qualname__ in algorithms_of(read_state(checkpoint)),
        finish=finish,
    )


def fingerprint_saved(checkpoint: Path) -> str:
    if checkpoint.is_file():
        return sha256_of_file(checkpoint)
    return fingerprint_value({path.name: sha256_of_file(path) for path in sorted(checkpoint.iterdir())})


def export_checkpoint(
    checkpoint: Path,
    init: Path,
    out: Path,
    *,
    target: Path,
    dtype: str,
    unknown_inputs: bool = False,
    finish: Callable[[Path], None],
) -> None:
    """Write the student of a checkpoint as a draft directory, atomically.

    Tokenizer, chat template and generation_config.json are byte-identical to the target's. Tied embeddings stay tied.

    Args:
        checkpoint: File or directory in <run>/checkpoints.
        init: Directory the training run started from.
        out: Draft directory; replaces an earlier draft.
        target: Directory of the target. The student's rows beyond the target's vocab_size are untrained padding and
            are dropped, so that no engine proposes an id the target does not have; missing rows are added
            (architectures/vocabulary_head.py). A head of a reduced vocabulary keeps its rows.
        dtype: Of every weight: "float32", "bfloat16" or "float16".
        unknown_inputs: True if an embedding row was trained to represent all ids outside the reduced vocabulary.
        finish: Called with the directory before it is moved into place; writes manifest.json.

    Raises:
        UserError: If checkpoint and init are of different models, the draft outputs ids that the target does not have,
            or `out` contains anything else.
    """
    config, vocab_size = read_config(init), vocab_size_of(target)
    require_replaceable(out, MANIFEST_NAME, reading=init, stage="export")
    if config["model_type"] not in FAMILIES:
        with staged_folder(out) as folder:
            save_any(load_checkpoint(init, checkpoint, dtype=dtype, rounded=dtype), config, target, folder)
            if (init / PLAN_NAME).is_file():
                shutil.copyfile(init / PLAN_NAME, folder / PLAN_NAME)
            finish(folder)
        return
    family = family_of(config, where=str(init / "config.json"))
    student = read_student(checkpoint, family)
    for name in (*([family.weight("head")] if config.get("tie_word_embeddings") else []), *family.stored_copies):
        copy = student.pop(name, None)  # embedding under another name
        if copy is not None and not torch.equal(copy, student[family.weight("embedding")]):
            raise UserError(
                f"{checkpoint}: {name} is not tied to the embedding as in {init}. Pass the init of its training run."
            )
    sizes = {name: info.size for name, info in open_weights(init).info.items()}
    trained_sizes = {name: tuple(tensor.shape) for name, tensor in student.items()}
    if differing := sorted({name for name, _ in sizes.items() ^ trained_sizes.items()}):
        raise UserError(
            f"{checkpoint}: differs from {init} in the shapes of {len(differing)} tensors, first {differing[0]}: "
            f"{trained_sizes.get(differing[0])} and {sizes.get(differing[0])}. Pass the init of its training run."
        )

    cast = getattr(torch, dtype)
    vocabulary = None
    if CONFIG_KEY in config:
        vocabulary = with_unknown(init) if unknown_inputs else read_draft_vocabulary(init)
        require_ids_of(target, vocab_size, vocabulary, init)
    # Tensors with a row for each id; a small head has rows only for the ids that it outputs.
    roles = ("embedding", "head") if vocabulary is None else ("embedding",)
    modules = {family.outside[role].name for role in roles}
    by_id = {name for name in sizes if name.rsplit(".", 1)[0] in modules}
    layout = {
        name: TensorInfo(cast, (vocab_size, *size[1:]) if name in by_id else size) for name, size in sizes.items()
    }

    def read(name: str) -> Tensor:
        tensor = student[name].to(cast)
        return fit_rows(tensor, vocab_size) if name in by_id else tensor

    config = with_special_ids(config | {family.keys["vocab"]: vocab_size}, read_config(target))
    with staged_folder(out) as folder:
        write_weights(layout, read, folder)
        write_json(with_dtype(config, dtype), folder / "config.json")
        carry_files(target, folder)
        if (init / PLAN_NAME).is_file():
            shutil.copyfile(init / PLAN_NAME, folder / PLAN_NAME)
        if vocabulary is not None:
            vocabulary = replace(vocabulary, vocab_size=vocab_size)
            write_draft_vocabulary(vocabulary, folder)
            write_text(small_head_card(vocabulary, family.weight("head")), folder / CARD_NAME)
        finish(folder)


def save_any(model: PreTrainedModel, config: Mapping[str, Any], target: Path, folder: Path) -> None:
    """Save a draft of a family without an entry, whose tensors only transformers can rename, with its own config.json.

    Raises:
        UserError: If the target has fewer token ids.
    """
    rows, vocab_size = model.config.vocab_size, vocab_size_of(target)
    if rows != vocab_size:
        raise UserError(f"{target}: has {vocab_size} token ids, the draft {rows}. Pass the target of this draft.")
    model.save_pretrained(folder)
    config = with_dtype(config, str(model.dtype).removeprefix("torch."))
    write_json(with_special_ids(config, read_config(target)), folder / "config.json")
    carry_files(target, folder)


def read_student(checkpoint: Path, family: Family) -> dict[str, Tensor]:
    """Read the student's tensors under their Hugging Face names; those of a file are memory-mapped."""
    found: dict[str, Tensor] = {}
    for name, tensor in read_model(checkpoint).items():
        found |= stored_tensors(family.stored_names(name.removeprefix(STUDENT_PREFIX), len(tensor)), tensor)
    return found


def vocab_size_of(folder: Path) -> int:
    return shape_of(folder).vocab


def require_ids_of(target: Path, vocab_size: int, vocabulary: DraftVocabulary, init: Path) -> None:
    """Raise UserError if an output id or the unknown id of a draft does not exist in the target."""
    last = max(vocabulary.ids[-1], vocabulary.unknown_id or 0)
    if last >= vocab_size:
        raise UserError(
            f"{init / DRAFT_VOCABULARY_NAME}: contains id {last}, but the target {target} has ids from 0 to "
            f"{vocab_size - 1}. Pass the target of this draft."
        )


def saved_models(run: Run) -> list[SavedModel]:
    """List the initial draft of a run and every intact checkpoint, oldest first; raises UserError without any."""
    folder, init = run.checkpoints.path, run.init.path
    paths = []
    for path in find_checkpoints(folder):
        if (problem := damage(path)) is None:
            paths.append(path)
        else:
            print(f"{path}: truncated or damaged ({problem}); skipped.", file=sys.stderr)
    if not paths:
        raise UserError(f"{folder}: contains no checkpoint to score. Run {command_of('distill')} first.")
    dtype, rounded = run.recipe.eval.dtype, run.recipe.export.dtype
    start = SavedModel(UNDISTILLED, 0, 0, partial(load_model, init, dtype=dtype))
    load = partial(load_checkpoint, init, dtype=dtype, rounded=rounded)
    return [start, *(saved_model(path, partial(load, path)) for path in paths)]


def saved_model(path: Path, load: Callable[[], PreTrainedModel]) -> SavedModel:
    timestamp = read_state(path)["timestamp"]["Timestamp"]
    name = path.name.removesuffix(OF_A_FILE)
    return SavedModel(name, timestamp["batch"], timestamp["token"], load)


def load_checkpoint(init: Path, path: Path, *, dtype: str, rounded: str) -> PreTrainedModel:
    """Load the student of a checkpoint, rounded to the dtype of an export; raises UserError for another init."""
    model, kept = load_model(init, dtype=dtype), getattr(torch, rounded)
    weights = {name.removeprefix(STUDENT_PREFIX): tensor.to(kept) for name, tensor in read_model(path).items()}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"{path}: was not trained from {init} ({str(error).splitlines()[0]}). Move it out of the directory."
        ) from error
    return model

"""A checkpoint becomes a Hugging Face folder: the init folder with every tensor replaced by the trained one.

Tokenizer, chat template, generation settings, special ids and vocab_size are the target's.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from architectures.checkpoints.fingerprint import fingerprint_checkpoint, fingerprint_file, fingerprint_value
from architectures.checkpoints.manifest import MANIFEST_NAME, write_manifest
from architectures.checkpoints.target_files import carry_files, require_tokenizer, with_special_ids
from architectures.checkpoints.weights import TensorInfo, open_weights, require_replaceable, write_weights
from architectures.errors import UserError
from architectures.families import family_of
from architectures.families.family import Family
from architectures.files.atomic import staged_folder, write_json, write_text
from architectures.pruning.plan import PLAN_NAME
from architectures.pruning.prune import with_dtype
from architectures.targets.target import read_config
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
from distill.checkpoints.files import damage, is_checkpoint
from distill.data.unknown_inputs import UnknownInputs
from distill.exporting.reading import algorithms_of, read_model, read_state
from distill.exporting.reloaded import compare_reloaded
from distill.run.run import Run, shape_of
from distill.run.stage_inputs import draft_inputs

STUDENT_PREFIX = "student.lm."  # where DistillModel keeps the language model
MAX_NAMES_SHOWN = 5


def export_draft(run: Run, checkpoint: Path, *, finished: bool) -> None:
    """Make <run>/draft from a checkpoint of its training, and say whether that has finished."""

    def finish(folder: Path) -> None:
        run.record(run.draft, draft_inputs(run), folder, finished=finished, checkpoint=checkpoint.name)

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
    """Make a draft folder from a checkpoint that no recipe names; arguments and errors as for `export_checkpoint`."""
    if not checkpoint.is_file() and not is_checkpoint(checkpoint):
        raise UserError(
            f"{checkpoint}: no such file or folder of a training. Give a .pt file, or a folder, of a run's checkpoints."
        )
    if (problem := damage(checkpoint)) is not None:
        raise UserError(f"{checkpoint}: cut short or damaged ({problem}). Give another checkpoint of its training.")
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
    """Of every byte of a checkpoint, a file or a folder."""
    if checkpoint.is_file():
        return fingerprint_file(checkpoint)
    return fingerprint_value({path.name: fingerprint_file(path) for path in sorted(checkpoint.iterdir())})


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
    """Write the student of a checkpoint as a draft folder; it appears whole or not at all, and computes what it did.

    Tokenizer, chat template and generation_config.json are the target's, byte for byte. Tied embeddings stay tied.

    Args:
        checkpoint: A file or folder of <run>/checkpoints, from one process or many.
        init: The folder the training started from.
        out: The draft folder; an earlier draft there is replaced.
        target: The folder of the model it drafts for. Rows the student has beyond the target's vocab_size are padding
            that was not trained and are left out, so that no engine proposes an id the target does not have; rows it
            lacks are added (architectures/vocabulary_head.py). A head that says some ids alone keeps its
            rows.
        dtype: Number type of every weight: "float32", "bfloat16" or "float16".
        unknown_inputs: Whether a row of its embedding was trained to stand for every id that it does not say.
        finish: Called with the folder before it takes its place; writes manifest.json.

    Raises:
        UserError: If checkpoint and init are not of one model, the draft says ids that the target does not have, out
            holds something else, or the folder, loaded again, has other logits than the student.
    """
    config = read_config(init)
    family = family_of(config, where=str(init / "config.json"))
    student = read_student(checkpoint, family)
    drop_copies(student, checkpoint, family, tied=bool(config.get("tie_word_embeddings")))
    sizes = {name: info.size for name, info in open_weights(init).info.items()}
    require_one_model(student, sizes, checkpoint=checkpoint, init=init)
    require_replaceable(out, MANIFEST_NAME, reading=init, stage="export")

    cast, vocab_size = getattr(torch, dtype), vocab_size_of(target)
    vocabulary = None
    if CONFIG_KEY in config:
        vocabulary = with_unknown(init) if unknown_inputs else read_draft_vocabulary(init)
        require_ids_of(target, vocab_size, vocabulary, init)
    by_id = set(vocabulary_tensors(sizes, family, small_head=CONFIG_KEY in config))
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
            write_vocabulary_and_card(replace(vocabulary, vocab_size=vocab_size), folder, family.weight("head"))
        print(f"   {compare_reloaded(checkpoint_student(checkpoint), init, folder, family, dtype=dtype, out=out)}")
        finish(folder)


def write_vocabulary_and_card(vocabulary: DraftVocabulary, folder: Path, head: str) -> None:
    """Say which ids a small head says, and how such a draft is used: transformers cannot open it by itself."""
    write_draft_vocabulary(vocabulary, folder)
    write_text(small_head_card(vocabulary, head), folder / CARD_NAME)


def checkpoint_student(checkpoint: Path) -> dict[str, Tensor]:
    """The student's tensors under the names of transformers' module; a file's are left on disk until they are used."""
    return {name.removeprefix(STUDENT_PREFIX): tensor for name, tensor in read_model(checkpoint).items()}


def read_student(checkpoint: Path, family: Family) -> dict[str, Tensor]:
    """The same under their names in a Hugging Face folder."""
    return {stored_name(name, family): tensor for name, tensor in checkpoint_student(checkpoint).items()}


def stored_name(name: str, family: Family) -> str:
    """What a checkpoint calls a parameter of transformers' module."""
    module, kind = name.rsplit(".", 1)
    return f"{family.renamed_modules.get(module, module)}.{kind}"


def vocabulary_tensors(names: Iterable[str], family: Family, *, small_head: bool) -> list[str]:
    """The tensors with a row for each id: embeddings, and weight and bias of the head unless it says some ids alone."""
    modules = {family.outside[role].name for role in (("embedding",) if small_head else ("embedding", "head"))}
    return [name for name in names if name.rsplit(".", 1)[0] in modules]


def vocab_size_of(folder: Path) -> int:
    """Rows of the embeddings of a checkpoint folder."""
    return shape_of(folder).vocab


def require_ids_of(target: Path, vocab_size: int, vocabulary: DraftVocabulary, init: Path) -> None:
    """Raise UserError if a draft says an id, or has trained one as the unknown, that its target does not have."""
    last = max(vocabulary.ids[-1], vocabulary.unknown_id or 0)
    if last >= vocab_size:
        raise UserError(
            f"{init / DRAFT_VOCABULARY_NAME}: says id {last}, and the target {target} has ids from 0 to "
            f"{vocab_size - 1}. Name the target that this draft was made for."
        )


def drop_copies(student: dict[str, Tensor], checkpoint: Path, family: Family, *, tied: bool) -> None:
    """Remove other names for the embeddings: a tied head's, and those of the stacks that share them."""
    head_name, embedding_name = family.weight("head"), family.weight("embedding")
    for name in (*([head_name] if tied else []), *family.stored_copies):
        copy = student.pop(name, None)
        if copy is not None and not torch.equal(copy, student[embedding_name]):
            raise UserError(
                f"{checkpoint}: {name} differs from {embedding_name}, but init says tie_word_embeddings true. "
                "This checkpoint was not trained from this init; give the one it was trained from."
            )


def require_one_model(
    student: Mapping[str, Tensor], sizes: Mapping[str, tuple[int, ...]], *, checkpoint: Path, init: Path
) -> None:
    """Raise UserError unless both hold the same tensors with the same sizes; names those that do not."""
    resized = [name for name in sizes if name in student and tuple(student[name].shape) != sizes[name]]
    for problem, names in (
        ("lacks", sizes.keys() - student.keys()),
        ("has, beyond init,", student.keys() - sizes.keys()),
        ("has another size of", resized),
    ):
        if names:
            raise UserError(
                f"{checkpoint} {problem} {name_some(names)}; {init} has {len(sizes)} tensors. "
                "This checkpoint was not trained from this init; give the one it was trained from."
            )


def name_some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - MAX_NAMES_SHOWN
    return ", ".join(ordered[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")

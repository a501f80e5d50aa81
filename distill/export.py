"""A checkpoint becomes a Hugging Face folder: the init folder with every tensor replaced by the trained one.

Tokenizer, chat template, generation settings, special ids and vocab_size are the target's. The folder is loaded again
before it is kept, and has to compute what the checkpoint's student does. Checkpoints can also be scored without a
folder for each (saved_models).

Shape suffixes used in this file:
    T = tokens, V = vocabulary entries, or rows of a small output head
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.checkpoints.fingerprint import fingerprint_checkpoint, fingerprint_file, fingerprint_value
from architectures.checkpoints.manifest import MANIFEST_NAME, write_manifest
from architectures.checkpoints.target_files import carry_files, require_tokenizer, with_special_ids
from architectures.checkpoints.weights import TensorInfo, open_weights, require_replaceable, write_weights
from architectures.errors import UserError
from architectures.families import family_of
from architectures.families.family import Family
from architectures.files.atomic import staged_folder, write_json, write_text
from architectures.files.file_hashes import sha256_of_files
from architectures.pruning.plan import PLAN_NAME
from architectures.pruning.prune import with_dtype
from architectures.settings.recipe_command import command_of
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
from distill.checkpoints.files import OF_A_FILE, damage, find_checkpoints, is_checkpoint
from distill.checkpoints.reading import algorithms_of, read_model, read_state
from distill.data.unknown_inputs import UnknownInputs
from distill.run.run import Run, shape_of
from distill.run.stage_inputs import draft_inputs
from eval.checkpoint_curve import Saved
from eval.models.loading import load_model
from eval.scorecard_schema import UNDISTILLED

STUDENT_PREFIX = "student.lm."  # where DistillModel keeps the language model
MAX_NAMES_SHOWN = 5
NUM_TOKENS = 16
PRIME = 7919  # a stride that visits no id twice, in vocabularies that are no multiple of it
# Of the largest logit. Weights are the same bits, but a product may sum in another order where a vocabulary has more
# rows or a tensor begins at another address: float32 loses some units in the last place by that, and a logit that is
# rounded to 16 bits afterwards falls on a neighbouring value.
TOLERANCE = {"float32": 1e-5, "bfloat16": 4 * 2.0**-8, "float16": 4 * 2.0**-11}


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


def compare_reloaded(
    student: Mapping[str, Tensor], init: Path, folder: Path, family: Family, *, dtype: str, out: Path
) -> str:
    """Load a written draft again and compare its logits with the student's, both in the number type of the draft.

    The student is the init folder's model with the checkpoint's weights, each rounded to that type once. Both run on
    the processor, one after the other: memory holds one of them.

    Args:
        student: The checkpoint's tensors, under the names of transformers' module.
        init: The folder its training started from.
        folder: The draft that was written.
        family: Of both.
        dtype: Number type of the draft: "float32", "bfloat16" or "float16".
        out: What the draft will be called.

    Returns:
        What was compared, in a sentence.

    Raises:
        UserError: If they differ by more than the order of sums explains.
    """
    ids_T = probe_ids(min(shape_of(init).vocab, shape_of(folder).vocab))
    model = load_model(init, dtype=dtype, device="cpu")
    take_weights(model, student, family)
    ours_TV = probe_logits(model, ids_T)
    del model
    theirs_TV = probe_logits(load_model(folder, dtype=dtype, device="cpu"), ids_T)
    shared = min(ours_TV.shape[-1], theirs_TV.shape[-1])
    compared = f"{NUM_TOKENS} positions of {shared:,} logits in {dtype}"
    outcome = verdict(ours_TV[:, :shared], theirs_TV[:, :shared], dtype=dtype, out=out)
    return f"{out}: loaded again, {compared}: {outcome}"


def take_weights(model: PreTrainedModel, student: Mapping[str, Tensor], family: Family) -> None:
    """Put the checkpoint's weights into a model of its init; every tensor, each under its own name."""
    in_files = {stored: name for name, stored in family.renamed_modules.items()}
    modules = [family.outside[role].name for role in ("head", "embedding")]
    head, embedding = (f"{in_files.get(module, module)}.weight" for module in modules)
    tied = {head: student[embedding]} if head not in student and head in model.state_dict() else {}
    with torch.no_grad():
        model.load_state_dict({**student, **tied}, strict=True)


def probe_ids(rows: int) -> Tensor:
    """ids_T of a text from all over the vocabulary: the same for every draft of a target."""
    return torch.arange(1, NUM_TOKENS + 1) * PRIME % rows


def probe_logits(model: PreTrainedModel, ids_T: Tensor) -> Tensor:
    """logits_TV of a text, in float32; an encoder reads it too, and the decoder backwards."""
    said = {"decoder_input_ids": ids_T[None].flip(1)} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        return model(ids_T[None], **said).logits[0].float()


def verdict(ours_TV: Tensor, theirs_TV: Tensor, *, dtype: str, out: Path) -> str:
    """How near two logits of one text are, in words.

    Raises:
        UserError: If they are not equal within the tolerance of their number type.
    """
    if torch.equal(ours_TV, theirs_TV):
        return "equal to those of the checkpoint's student, bit for bit."
    distance, largest = (ours_TV - theirs_TV).abs().max().item(), ours_TV.abs().max().item()
    if distance <= TOLERANCE[dtype] * largest:
        return f"within {distance:.2g} of those of the checkpoint's student (largest {largest:.3g})."
    raise UserError(
        f"{out}: loaded again, its logits differ by {distance:.3g} from those of the checkpoint's student, whose "
        f"largest is {largest:.3g}; the order of sums in {dtype} explains {TOLERANCE[dtype] * largest:.2g}. "
        "No folder was kept. Take checkpoint and init from one run, or try dtype float32."
    )


def saved_models(run: Run) -> list[Saved]:
    """What the training of a run started from, and every intact checkpoint of it, oldest first.

    Raises:
        UserError: If there is no checkpoint.
    """
    folder, init = run.checkpoints.path, run.init.path
    paths = [path for path in find_checkpoints(folder) if is_whole(path)]
    if not paths:
        raise UserError(f"{folder}: no checkpoint to score. Run {command_of('distill')} first.")
    dtype, rounded = run.recipe.eval.dtype, run.recipe.export.dtype
    start = Saved(UNDISTILLED, 0, 0, fingerprint_checkpoint(init), partial(load_model, init, dtype=dtype))
    load = partial(load_checkpoint, init, dtype=dtype, rounded=rounded)
    return [start, *(saved_model(path, (start.fingerprint, rounded), partial(load, path)) for path in paths)]


def is_whole(path: Path) -> bool:
    """Whether a checkpoint can be read; one that cannot is named on stderr."""
    problem = damage(path)
    if problem is not None:
        print(f"{path}: cut short or damaged ({problem}); left out.", file=sys.stderr)
    return problem is None


def saved_model(path: Path, beside: tuple[str, ...], load: Callable[[], PreTrainedModel]) -> Saved:
    """One checkpoint, not yet in memory; beside is what decides its model too."""
    timestamp = read_state(path)["timestamp"]["Timestamp"]
    name = path.name.removesuffix(OF_A_FILE)
    files = [path] if path.is_file() else sorted(path.iterdir())
    weights = sha256_of_files(files, description=f"hashing {path.name}")
    return Saved(name, timestamp["batch"], timestamp["token"], fingerprint_value([*weights, *beside]), load)


def load_checkpoint(init: Path, path: Path, *, dtype: str, rounded: str) -> PreTrainedModel:
    """The student of a checkpoint, its weights rounded as an export rounds them.

    Args:
        init: What its training started from.
        path: The checkpoint.
        dtype: Number type of the model.
        rounded: That an export would round its weights to.

    Raises:
        UserError: If it was not trained from init.
    """
    model, kept = load_model(init, dtype=dtype), getattr(torch, rounded)
    weights = {name.removeprefix(STUDENT_PREFIX): tensor.to(kept) for name, tensor in read_model(path).items()}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"{path}: was not trained from {init} ({str(error).splitlines()[0]}). Take it out of the folder."
        ) from error
    return model

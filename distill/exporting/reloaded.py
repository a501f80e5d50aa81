"""What an export is held to: the folder, loaded as any command loads it, computes what the checkpoint's student does.

Shape suffixes used in this file:
    T = tokens, V = vocabulary entries, or rows of a small output head
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.families.family import Family
from distill.run.run import shape_of
from eval.models.loading import load_model

NUM_TOKENS = 16
PRIME = 7919  # a stride that visits no id twice, in vocabularies that are no multiple of it
# Of the largest logit. Weights are the same bits, but a product may sum in another order where a vocabulary has more
# rows or a tensor begins at another address: float32 loses some units in the last place by that, and a logit that is
# rounded to 16 bits afterwards falls on a neighbouring value.
TOLERANCE = {"float32": 1e-5, "bfloat16": 4 * 2.0**-8, "float16": 4 * 2.0**-11}


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

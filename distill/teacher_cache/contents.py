"""What a cache keeps of the teacher at an answer token: its last hidden state, its top entries, or tokens it drew.

Shape suffixes used in this file:
    A = answer tokens, one row each; H = width of the last hidden state; V = vocabulary entries
    K = entries kept; S = tokens drawn

Each content is a set of named tensors with one row per answer token:
    hidden:  hidden_AH in the teacher's dtype, after its final norm. With the head of the target it gives every logit.
    top_k:   ids_AK, most likely first; log_probs_AK, float16; log_tail_A, float32, log of the mass of all other tokens.
    samples: ids_AS, drawn at temperature 1; a token drawn twice stands there twice.
Ids have the smallest integer type that holds the vocabulary.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from architectures.checkpoints.weights import open_weights
from architectures.families import family_of
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from distill.losses.chunked import Head
from distill.recipe.sections.teacher import id_bytes
from eval.models.loading import text_config

ID_TYPES = {1: torch.uint8, 2: torch.uint16, 4: torch.int32}
LOG_PROB_TYPE = torch.float16  # log p = -10 to 0.004; bfloat16 would round it to 0.03


def load_head(target: Path, *, dtype: str, device: str) -> Head:
    """The head of a target folder, without the rest of its weights; no family we know has a bias there.

    Args:
        target: A Hugging Face folder.
        dtype: A floating torch dtype by name: that of the cached hidden states.
        device: Where it runs, as torch names it.

    Raises:
        UserError: If the folder's weights are missing or damaged.
    """
    config = read_config(target)
    family = family_of(config, where=str(target / "config.json"))
    role = "embedding" if Shape.from_config(config, where=str(target / "config.json")).tied else "head"
    weights = open_weights(target, base_prefix=family.base_prefix)
    weight_VH = weights.read(family.weight(role)).to(device=device, dtype=getattr(torch, dtype))
    settings = text_config(target)
    softcap = getattr(settings, "final_logit_softcapping", None)
    divisor = getattr(settings, "logits_scaling", 1.0)
    return Head(weight_VH, bias_V=None, softcap=softcap, vocab_size=len(weight_VH), divisor=divisor)


def top_k_rows(logits_AV: Tensor, k: int) -> dict[str, Tensor]:
    """The K most likely tokens, their log-probabilities and the log of what is left, computed in float32."""
    logits_AV = logits_AV.float()
    total_A1 = logits_AV.logsumexp(dim=-1, keepdim=True)
    kept_AK, ids_AK = logits_AV.topk(k)
    rest_A = logits_AV.scatter(-1, ids_AK, -torch.inf).logsumexp(dim=-1)
    return {
        "ids": narrow_ids(ids_AK, logits_AV.shape[-1]),
        "log_probs": (kept_AK - total_A1).to(LOG_PROB_TYPE),
        "log_tail": rest_A - total_A1[:, 0],
    }


def sampled_rows(logits_AV: Tensor, uniform_AS: Tensor) -> dict[str, Tensor]:
    """S tokens of each row at temperature 1, in ascending order.

    Args:
        logits_AV: Of the teacher.
        uniform_AS: Numbers in (0, 1], float64; the token of each is where the cumulated probability reaches it, so a
            token of probability 0 is never drawn.
    """
    cumulated_AV = logits_AV.double().softmax(dim=-1).cumsum(dim=-1)
    ids_AS = torch.searchsorted(cumulated_AV, uniform_AS * cumulated_AV[:, -1:])
    return {"ids": narrow_ids(ids_AS.sort(dim=-1).values, logits_AV.shape[-1])}


def uniform_numbers(num_tokens: int, num_samples: int, *, seed: int) -> Tensor:
    """uniform_AS in (0, 1], float64, the same for the same seed on every device."""
    generator = torch.Generator().manual_seed(seed)
    return 1 - torch.rand(num_tokens, num_samples, dtype=torch.float64, generator=generator)


def narrow_ids(ids: Tensor, vocab: int) -> Tensor:
    """Ids in the smallest integer type that holds a vocabulary."""
    return ids.to(ID_TYPES[id_bytes(vocab)])


def widen(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows as losses want them: int64 ids, float32 log-probabilities, hidden states as they are."""
    types = {"ids": torch.int64, "log_probs": torch.float32}
    return {name: tensor.to(types.get(name, tensor.dtype)) for name, tensor in rows.items()}


def join_rows(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The rows of several sequences, one sequence after the other: the order of a batch's keep mask."""
    return {name: torch.cat([tensors[name] for tensors in rows]) for name in rows[0]}

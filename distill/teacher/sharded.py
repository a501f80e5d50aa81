"""A teacher that no single device holds: its weights in shards over all processes, gathered layer by layer to answer.

Each process keeps 1/N of the weights, and the embeddings and the output head whole. There is no optimiser state and
nothing of it is saved. Source: FSDP2, Zhao et al. 2023, arXiv 2304.11277, as `torch.distributed.fsdp.fully_shard`.
"""

from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from composer.utils import dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, PreTrainedModel

from distill.losses.answer_logits import AnswerLogits
from distill.teacher.live import Teacher
from eval.models.loading import load_config, load_model


def load_sharded_teacher(target: Path, *, dtype: str, device: str, packing: bool = False, multiple: int = 1) -> Teacher:
    """The teacher of a target folder, each process with its share. Call on all processes.

    Rank 0 reads the folder into its host's memory and hands out the shards, so one copy exists, and on one host alone.

    Args:
        target: A Hugging Face folder.
        dtype: Number type of its weights and arithmetic: "float32", "bfloat16" or "float16".
        device: Where this process's share goes, as torch names it.
        packing: As in AnswerLogits.
        multiple: Likewise.

    Raises:
        UserError: If the folder's weights are missing or damaged, or packing is asked for and cannot be.
    """
    weights: dict[str, Any] = {}
    if dist.get_global_rank() == 0:
        weights = load_model(target, dtype=dtype, device="cpu").state_dict()
    model = AnswerLogits(without_weights(target, dtype=dtype), packing=packing, multiple=multiple)
    model.requires_grad_(requires_grad=False)
    shard(model, device=device)
    give_storage(model, device=device)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model.lm, weights, options=options)
    return Teacher(model)


def without_weights(target: Path, *, dtype: str) -> PreTrainedModel:
    """The model of a folder, its parameters without storage; buffers, which no checkpoint holds, are there."""
    config = load_config(target)
    with init_empty_weights(include_buffers=False):
        lm = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), trust_remote_code=False)
    lm.tie_weights()
    return lm


def shard(model: AnswerLogits, *, device: str) -> None:
    """Divide every layer over all processes, and the rest as one more unit, which stays gathered once it was used."""
    mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
    for layer in filter(model.fsdp_wrap_fn, model.modules()):
        fully_shard(layer, mesh=mesh)  # pyright: ignore[reportArgumentType]
    fully_shard(model, mesh=mesh, reshard_after_forward=False)


def give_storage(model: AnswerLogits, *, device: str) -> None:
    """Room for this process's shards on its device, and the buffers with what they held."""
    held = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(held[name])

"""The model of a mask training on this process: the target's weights and fresh masks, beside the frozen target."""

from typing import Any

import torch
from composer.utils import dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from architectures.masks.masks import Masks
from architectures.shapes.requested_shape import masked_shape
from architectures.shapes.section import MasksConfig
from distill.losses.answer_logits import AnswerLogits, logits_of
from distill.masks.model import MaskModel
from distill.recipe.sections.teacher import is_sharded, teacher_dtype
from distill.recipe.sections.times import split_time
from distill.run.run import Run, shape_of
from distill.sharding import recompute_layers
from distill.teacher import Teacher, load_sharded_teacher, load_teacher, without_weights
from eval.models.loading import load_model


def build_mask_model(run: Run) -> MaskModel:
    """Weights in float32 and fresh masks; where the processes share them, rank 0 reads them, and Composer hands out."""
    recipe, target, on_gpu = run.recipe, run.target, torch.cuda.is_available()
    config, source = recipe.architecture.masks, shape_of(run.target)
    masks = Masks(source, masked_shape(source, recipe.architecture), seed=recipe.seed)
    device = f"cuda:{dist.get_local_rank()}" if on_gpu else "cpu"
    if recipe.distill.parallelism == "ddp":
        student = load_model(target, dtype="float32", device=device, trained=True)
    elif dist.get_global_rank() == 0:
        student = load_model(target, dtype="float32", device="cpu", trained=True)
    else:
        student = without_weights(target, dtype="float32")
    if recipe.distill.activation_checkpointing:
        recompute_layers(student)
    return MaskModel(
        AnswerLogits(student),
        masks,
        load_frozen(run, dtype=teacher_dtype(recipe.target.dtype, config.precision)) if config.kl_weight else None,
        config=config,
        warmup_batches=in_batches(config.target_warmup, config),
        cpu_bfloat16=not on_gpu and config.precision != "fp32",
    )


def load_frozen(run: Run, *, dtype: str, sharded: bool | None = None) -> Teacher:
    """The target as it was, on this process's device; in shards where the recipe's teacher is, unless told."""
    device = f"cuda:{dist.get_local_rank()}" if torch.cuda.is_available() else "cpu"
    sharded = is_sharded(run.recipe.distill.teacher) if sharded is None else sharded
    return (load_sharded_teacher if sharded else load_teacher)(run.target, dtype=dtype, device=device)


def all_logits(model: AnswerLogits, ids_BT: Tensor) -> Tensor:
    """logits_BTV of a model that is called as a whole, as one in shards must be."""
    with torch.no_grad():
        return model(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool), logits_of).unflatten(0, ids_BT.shape)


def gathered(model: MaskModel) -> dict[str, Any]:
    """The state of student and masks in rank 0's host memory, whole; nothing on others. Call on all processes."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def part_of(state: dict[str, Any], prefix: str) -> dict[str, Tensor]:
    """The tensors of one module, by the names that it has for them."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def masks_of(run: Run, state: dict[str, Any]) -> Masks:
    """Whole masks with a gathered state."""
    source = shape_of(run.target)
    masks = Masks(source, masked_shape(source, run.recipe.architecture), seed=run.recipe.seed)
    masks.load_state_dict(part_of(state, "masks."))
    return masks


def in_batches(time: str, config: MasksConfig) -> int:
    """A time of the masks section in batches, at least one."""
    value, unit = split_time(time)
    total, _ = split_time(config.max_duration)
    return max(1, round(value * total if unit == "dur" else value))


def without_dur(time: str, config: MasksConfig) -> str:
    """A time in batches if it was a share of the training: Composer asks for the length of the text, which has none."""
    return f"{in_batches(time, config)}ba" if split_time(time)[1] == "dur" else time

"""What a target takes that is not whole in memory, where it answers, is cached and scored: no torch.

A training holds nothing of it but its output head (distill/estimates/memory.py).
"""

from architectures.files.disk import size
from architectures.pages.counts import number_of
from architectures.shapes.shape import Shape
from distill.recipe.recipe import Recipe
from eval.targets.layer_memory import LayerMemory, layer_memory


def held_target_bytes(recipe: Recipe, target: Shape, *, on_gpu: bool) -> int:
    """The least memory of a process for a target that is read layer by layer: one layer, and one batch at work."""
    memory = layer_memory(target, recipe.target.dtype, keeps_scores=not on_gpu)
    return memory.least_bytes(recipe.data.batch_size, recipe.data.max_seq_len)


def held_target_rows(recipe: Recipe, target: Shape, *, on_gpu: bool) -> dict[str, list[tuple[str, str]]]:
    """What `widedraft check` shows of it; nothing of a target that is whole."""
    placement = recipe.target.placement
    if placement == "whole":
        return {}
    memory = layer_memory(target, recipe.target.dtype, keeps_scores=not on_gpu)
    asked = recipe.target.device_memory_gib
    allowed = "what is free" if asked is None else f"{asked:g} GiB"
    return {
        f"target, {placement}, memory of a process that answers, caches or scores": [
            ("may take on a device", allowed),
            (memory.largest, f"{size(memory.largest_bytes).strip()} in {recipe.target.dtype}, of {weights(memory)}"),
            *(batch_rows(recipe, memory, target, on_gpu=on_gpu) if placement == "layers" else []),
        ]
    }


def weights(memory: LayerMemory) -> str:
    return f"{size(memory.weight_bytes).strip()} of weights"


def batch_rows(recipe: Recipe, memory: LayerMemory, target: Shape, *, on_gpu: bool) -> list[tuple[str, str]]:
    """What the texts take that a layer reads."""
    rows, width = recipe.data.batch_size, recipe.data.max_seq_len
    at_work = size(memory.pass_bytes(rows, width)).strip()
    batch = f"{number_of(rows, 'text')} of {width:,} tokens"
    return [
        ("one layer at work", f"{at_work}, {batch}"),
        ("kept between layers", f"{memory.state_bytes:,} bytes a token, as many texts as there is memory for"),
        ("least", size(held_target_bytes(recipe, target, on_gpu=on_gpu)).strip()),
    ]

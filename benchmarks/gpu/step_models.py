"""The models of the steps stage, all but a real target of random weights."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from transformers import PreTrainedModel

from architectures.shapes import NAMED_SHAPES
from benchmarks.equal_shapes import EqualShape, equal_shape
from benchmarks.gpu.models import random_model
from benchmarks.gpu.stage import Setting, SkippedError, number_type
from benchmarks.gpu.step_sizes import Sizes
from eval.latency import source_shape, untrained_model
from eval.models import load_model
from eval.scorecard_schema import TARGET

Maker = Callable[[], PreTrainedModel]


def makers(setting: Setting, sizes: Sizes, made: Mapping[str, PreTrainedModel]) -> dict[str, Maker]:
    """What makes the model of each shape, the target's first.

    Args:
        setting: Where.
        sizes: Which shapes.
        made: Holds the target by the time that its drafts are made.

    Raises:
        SkippedError: If the target is a real one and not there.
    """
    dtype = number_type(setting.device)
    if sizes.target != TARGET:
        names = [sizes.target, *map(str, sizes.drafts)]
        return {name: partial(random_model, NAMED_SHAPES[name].shape, setting.device, dtype) for name in names}
    if not (setting.target / "config.json").is_file():
        raise SkippedError("the real target was not carried")
    load = partial(load_model, setting.target, dtype=str(dtype).removeprefix("torch."), device=str(setting.device))
    counts = [count for count in sizes.drafts if isinstance(count, int)]
    return {TARGET: load, **{layers_name(count): partial(cut_model, made, count) for count in counts}}


def layers_name(count: int) -> str:
    """What a draft of so many of the target's layers is called."""
    return f"{count} layer{'s' if count > 1 else ''}"


def cut_model(made: Mapping[str, PreTrainedModel], layers: int) -> PreTrainedModel:
    """A model like the target but for its number of layers."""
    target = made[TARGET]
    return untrained_model(target, replace(source_shape(target), layers=layers))


def equal_models(target: PreTrainedModel, sizes: Sizes) -> dict[EqualShape, PreTrainedModel]:
    """From shallow and wide to deep and narrow."""
    source = source_shape(target)
    size = round(sizes.equal_share * source.parameters())
    shapes = [EqualShape(size, equal_shape(source, layers=layers, parameters=size)) for layers in sizes.equal]
    return {shape: untrained_model(target, shape.shape) for shape in shapes}

"""The least a decoding step can take: the bytes it must read, at the speed at which this memory is read.

A step reads every weight but those of the input embeddings, of which it looks up a row a token; tied embeddings are
read as the output head. It reads the keys and values of every token in every row. Activations are left out. A step
that takes less was served by a cache of the processor.
"""

from typing import Any, cast

from transformers import PreTrainedModel

from architectures.families import FAMILIES
from architectures.shapes.shape import Shape


def step_bytes(model: PreTrainedModel, *, batch: int, context: int) -> int | None:
    """Bytes a step over some rows reads at least; None where `shape_of` is.

    Args:
        model: As it stands in memory: quantised weights count as what they take.
        batch: Rows.
        context: Tokens each row has in its cache.
    """
    shape = shape_of(model)
    if shape is None:
        return None
    return weight_bytes_read(model) + batch * context * shape.kv_bytes_per_token(dtype_name(model))


def byte_ratio(target: PreTrainedModel, draft: PreTrainedModel, *, context: int) -> float | None:
    """Bytes a step of the draft reads over those of the target, at batch 1; None where either is not known."""
    read, target_read = (step_bytes(model, batch=1, context=context) for model in (draft, target))
    return None if read is None or target_read is None else read / target_read


def shape_of(model: PreTrainedModel) -> Shape | None:
    """The shape of a decoder-only model; None for a family of which only transformers knows it."""
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder or config.model_type not in FAMILIES:
        return None
    sizes = {key: value for key, value in config.to_dict().items() if key != "quantization_config"}  # packed or not
    return Shape.from_config(sizes, where=str(model.name_or_path))


def dtype_name(model: PreTrainedModel) -> str:
    """As configs write it: "float32"."""
    return str(model.dtype).removeprefix("torch.")


def weight_bytes_read(model: PreTrainedModel) -> int:
    """Bytes of the weights that a step reads: all, but for embeddings that are not the head as well."""
    total = sum(parameter.nbytes for parameter in model.parameters())
    embeddings, head = (cast("Any", module) for module in (model.get_input_embeddings(), model.get_output_embeddings()))
    is_head = head is not None and head.weight is embeddings.weight
    return total if is_head else total - embeddings.weight.nbytes

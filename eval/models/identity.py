"""Which model it is, as records say it."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.vocabulary_head import head_ids


def decoding_layers(model: PreTrainedModel) -> int:
    """Layers that a step of decoding goes through; of a model with an encoder those of its decoder."""
    config = model.config.get_text_config(decoder=True)
    return getattr(config, "num_decoder_layers", None) or config.num_hidden_layers


def model_facts(folder: Path, model: PreTrainedModel) -> dict[str, Any]:
    """The fields of eval.records.origin.ScoredModel."""
    config, ids_K = model.config.get_text_config(decoder=True), head_ids(model)
    return {
        "path": str(folder),
        "fingerprint": fingerprint_checkpoint(folder),
        "model_type": config.model_type,
        "layers": decoding_layers(model),
        "hidden": config.hidden_size,
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "head_vocab_size": None if ids_K is None else len(ids_K),
    }

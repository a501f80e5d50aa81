"""The key/value cache of one sequence: grows with each forward pass, and can be taken back to an earlier length."""

from inspect import signature

from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import create_causal_mask

from architectures.errors import UserError

RENAMED = "cache" in signature(create_causal_mask).parameters
CACHE_ARGUMENT = "cache" if RENAMED else "past_key_values"  # of a model's forward pass, to transformers 5.23 and since


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for a decoder-only model.

    Raises:
        UserError: If a layer keeps something that cannot be taken back token by token.
    """
    cache = DynamicCache(config=model.config)
    kinds = sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer})
    if kinds:
        raise UserError(
            f"{model.config.name_or_path}: its layers keep their past in {', '.join(kinds)}, which cannot be rolled "
            "back after a rejected token. Score a model whose layers all attend to the whole past."
        )
    return cache


def roll_back(cache: DynamicCache, length: int) -> None:
    """Forget everything after the first `length` tokens, all of which the cache must hold."""
    surplus = cache.get_seq_length() - length
    assert surplus >= 0, f"the cache holds {length + surplus} tokens, fewer than the {length} to keep"
    cache.crop(-surplus)  # transformers 5 counts tokens to remove, as a negative number
    assert cache.get_seq_length() == length

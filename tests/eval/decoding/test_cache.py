"""The cache forgets exactly what it is told to, and models that cannot forget are refused."""

import pytest
import torch

from architectures.errors import UserError
from eval.decoding.kv_cache import new_cache, roll_back
from eval.models.loading import load_model

IDS = torch.tensor([[5, 6, 7, 8, 9]])


def feed(model, cache, ids):
    with torch.inference_mode():
        return model(input_ids=ids, past_key_values=cache, use_cache=True).logits


def test_a_new_cache_is_empty_and_grows_with_what_is_fed(target):
    cache = new_cache(target)
    assert cache.get_seq_length() == 0
    feed(target, cache, IDS)
    assert cache.get_seq_length() == 5


@pytest.mark.parametrize("length", range(6))
def test_what_was_rolled_back_leaves_no_trace(target, length):
    cache = new_cache(target)
    feed(target, cache, IDS)
    roll_back(cache, length)
    assert cache.get_seq_length() == length
    fresh = new_cache(target)
    if length:
        feed(target, fresh, IDS[:, :length])
    # float32 defaults of torch: one pass over five tokens and one over fewer round differently
    torch.testing.assert_close(feed(target, cache, IDS[:, :1]), feed(target, fresh, IDS[:, :1]), rtol=1e-4, atol=1e-4)


def test_a_cache_cannot_be_rolled_forward(target):
    cache = new_cache(target)
    feed(target, cache, IDS)
    with pytest.raises(AssertionError, match="holds 5 tokens, fewer than the 6"):
        roll_back(cache, 6)


def test_a_sliding_window_is_refused(make_checkpoint):
    model = load_model(make_checkpoint(model_type="mistral", sliding_window=8), dtype="float32", device="cpu")
    with pytest.raises(UserError, match=r"DynamicSlidingWindowLayer, which cannot be rolled back") as caught:
        new_cache(model)
    assert model.config.name_or_path in str(caught.value)


def test_a_model_of_the_same_family_without_a_window_is_accepted(make_checkpoint):
    model = load_model(make_checkpoint(model_type="mistral", sliding_window=None), dtype="float32", device="cpu")
    assert new_cache(model).get_seq_length() == 0

"""A target of which a part is on the disk, by accelerate."""

from contextlib import nullcontext

import pytest
import torch

from architectures.checkpoint import open_weights
from architectures.settings import Holding
from eval.decoding.sampling import Limits
from eval.decoding.speculative import plain_decode
from eval.large_targets import largest_part, load_target
from eval.models import load_model
from eval.replay import response_logits
from tests.conftest import hide_gpus
from tests.rejections import rejects

HALF = 0.00045  # GiB: two of four layers, and the embedding
GIVEN = ([5, 9, 17, 40], [7, 8, 9])


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    hide_gpus(monkeypatch)


def spread(folder, **memory):
    return load_target(folder, dtype="float32", holding=Holding("spread", **memory))


def test_a_target_half_on_the_disk_says_what_it_says_in_memory(target_folder):
    whole, model = load_model(target_folder, dtype="float32"), spread(target_folder, device_memory_gib=HALF)
    places = list(model.hf_device_map.values())
    assert places.count("disk") >= 1
    assert places.count("cpu") >= 2
    assert torch.equal(response_logits(model, *GIVEN), response_logits(whole, *GIVEN))
    [ours], [theirs] = (plain_decode(each, [GIVEN[0]], limits=Limits(5, frozenset())) for each in (model, whole))
    assert ours.token_ids == theirs.token_ids


OTHERS = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["full_attention"] * 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
}


@pytest.mark.parametrize("model_type", OTHERS)
def test_so_does_any_causal_lm(make_checkpoint, model_type):
    folder = make_checkpoint(seed=3, model_type=model_type, **OTHERS[model_type])
    whole, (_, largest) = load_model(folder, dtype="float32"), largest_part(open_weights(folder), "float32")
    model = spread(folder, device_memory_gib=2.5 * largest / 2**30)
    assert "disk" in model.hf_device_map.values()
    assert torch.equal(response_logits(model, *GIVEN), response_logits(whole, *GIVEN))


@pytest.mark.parametrize(("count", "fits"), [(0.9, False), (2.5, True)])
def test_the_largest_layer_must_fit(target_folder, count, fits):
    name, largest = largest_part(open_weights(target_folder), "float32")
    layer = load_model(target_folder, dtype="float32").model.layers[0]
    assert name in {f"model.layers.{number}" for number in range(4)}
    assert largest == 4 * sum(each.numel() for each in layer.parameters())
    with nullcontext() if fits else rejects("target.device_memory_gib", name):
        spread(target_folder, device_memory_gib=count * largest / 2**30)


def test_memory_that_holds_nothing_is_refused(target_folder):
    with rejects("target.device_memory_gib"):
        spread(target_folder, device_memory_gib=0.0001)

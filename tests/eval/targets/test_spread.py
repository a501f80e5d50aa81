"""A target of which a part is on the disk, by accelerate."""

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

GIVEN = ([5, 9, 17, 40], [7, 8, 9])


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    hide_gpus(monkeypatch)


def spread(folder, **memory):
    return load_target(folder, dtype="float32", holding=Holding("spread", **memory))


FAMILIES = {
    "llama": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["full_attention"] * 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_target_half_on_the_disk_says_what_it_says_in_memory(make_checkpoint, model_type):
    folder = make_checkpoint(seed=3, model_type=model_type, **FAMILIES[model_type])
    whole, (_, largest) = load_model(folder, dtype="float32"), largest_part(open_weights(folder), "float32")
    model = spread(folder, device_memory_gib=2.5 * largest / 2**30)
    places = list(vars(model)["hf_device_map"].values())
    assert places.count("disk") >= 1
    assert places.count("cpu") >= 2
    assert torch.equal(response_logits(model, *GIVEN), response_logits(whole, *GIVEN))
    [ours], [theirs] = (plain_decode(each, [GIVEN[0]], limits=Limits(5, frozenset())) for each in (model, whole))
    assert ours.token_ids == theirs.token_ids


@pytest.mark.parametrize("count", [0.01, 0.9])
def test_the_largest_layer_must_fit(target_folder, count):
    name, largest = largest_part(open_weights(target_folder), "float32")
    layer = load_model(target_folder, dtype="float32").model.layers[0]
    assert name in {f"model.layers.{number}" for number in range(4)}
    assert largest == 4 * sum(each.numel() for each in layer.parameters())
    with rejects("target.device_memory_gib", name):
        spread(target_folder, device_memory_gib=count * largest / 2**30)

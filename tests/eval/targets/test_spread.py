"""A target of which a part is on the disk, by accelerate."""

import pytest
import torch

from architectures.settings import Holding
from eval.decoding.sampling import Limits
from eval.decoding.speculative import plain_decode
from eval.large_targets import load_target
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


def test_memory_that_holds_nothing_is_refused(target_folder):
    with rejects("target.device_memory_gib"):
        spread(target_folder, device_memory_gib=0.0001)

"""Plans: the kept layers, their laws, and the refusals."""

import json
from itertools import pairwise

import pytest

from architectures.config import ArchitectureConfig
from architectures.errors import UserError
from architectures.plan import PruningPlan, plan_pruning
from architectures.shapes import NAMED_SHAPES, Shape

LLAMA_7B = NAMED_SHAPES["llama-7b"].shape
SMOLLM2 = Shape(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocab=49152, tied=True)
METHODS = ("first_last", "evenly_spaced")


def layers(source: Shape, num_layers: int, method: str) -> tuple[int, ...]:
    return plan_pruning(source, ArchitectureConfig(layers=num_layers, method=method)).source_layers


def test_known_plans():
    assert layers(SMOLLM2, 6, "first_last") == (0, 1, 2, 3, 4, 29)
    assert layers(SMOLLM2, 6, "evenly_spaced") == (0, 6, 12, 17, 23, 29)
    assert layers(LLAMA_7B, 5, "evenly_spaced") == (0, 8, 16, 23, 31)  # 7.75, 15.5, 23.25: halves go up


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_source", [1, 2, 3, 7, 30, 32])
def test_laws_of_every_plan(method, num_source):
    source = Shape(layers=num_source, hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocab=99)
    for num_layers in range(1, num_source + 1):
        kept = layers(source, num_layers, method)
        assert len(kept) == num_layers
        assert all(a < b for a, b in pairwise(kept))
        if num_layers > 1:
            assert kept[0] == 0
            assert kept[-1] == num_source - 1
    assert layers(source, num_source, method) == tuple(range(num_source))


def test_evenly_spaced_gaps_differ_by_at_most_one():
    for num_layers in range(2, 33):
        kept = layers(LLAMA_7B, num_layers, "evenly_spaced")
        gaps = {b - a for a, b in pairwise(kept)}
        assert max(gaps) - min(gaps) <= 1


def test_a_single_layer_is_the_first():
    assert layers(SMOLLM2, 1, "first_last") == layers(SMOLLM2, 1, "evenly_spaced") == (0,)


def test_only_the_depth_changes():
    plan = plan_pruning(SMOLLM2, ArchitectureConfig(layers=6))

    assert plan.source == SMOLLM2
    assert (plan.draft.layers, plan.method) == (6, "first_last")
    assert {**vars(plan.draft), "layers": 30} == vars(SMOLLM2)


def test_a_named_shape_gives_its_depth_and_keeps_the_targets_vocabulary():
    target = Shape(**{**vars(LLAMA_7B), "vocab": 32016, "tied": True})

    plan = plan_pruning(target, ArchitectureConfig(shape="wide-796m"))

    assert plan.source_layers == (0, 1, 2, 3, 31)
    assert (plan.draft.layers, plan.draft.vocab, plan.draft.tied) == (5, 32016, True)


def test_more_layers_than_the_target():
    with pytest.raises(UserError, match=r"architecture\.layers=31 has 31 layers, the target has 30\. .* 1 to 30"):
        plan_pruning(SMOLLM2, ArchitectureConfig(layers=31))
    shallow = Shape(**{**vars(LLAMA_7B), "layers": 4})
    with pytest.raises(UserError, match=r"architecture\.shape=wide-796m has 5 layers, the target has 4\."):
        plan_pruning(shallow, ArchitectureConfig(shape="wide-796m"))


def test_another_width_names_each_differing_dimension():
    with pytest.raises(UserError) as caught:
        plan_pruning(LLAMA_7B, ArchitectureConfig(shape="wide-1.3b"))

    assert str(caught.value) == (
        "architecture.shape=wide-1.3b differs from the target in hidden 2560 (target 4096), intermediate 9280 "
        "(target 11008), heads 20 (target 32), kv_heads 20 (target 32). Only depth can be cut at present: set "
        "architecture.layers, or choose a shape as wide as the target (`widedraft shapes`)."
    )


def test_head_dim_alone_is_a_difference():
    target = Shape(**{**vars(LLAMA_7B), "head_dim": 64})
    with pytest.raises(UserError, match=r"in head_dim 128 \(target 64\)\."):
        plan_pruning(target, ArchitectureConfig(shape="wide-796m"))


@pytest.mark.parametrize("method", METHODS)
def test_json_round_trip(method):
    plan = plan_pruning(SMOLLM2, ArchitectureConfig(layers=6, method=method))

    assert PruningPlan.from_json(plan.to_json()) == plan
    assert json.loads(plan.to_json())["source_layers"] == list(plan.source_layers)

"""Plans: the kept layers, their laws, and the refusals."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from architectures.manifest import fingerprint_checkpoint
from architectures.pruning.plan import Scores, load_plan, needed_scores, plan_pruning
from architectures.requested_shape import ArchitectureConfig
from architectures.shapes import NAMED_SHAPES, Shape
from tests.rejections import rejects

LLAMA_7B = NAMED_SHAPES["llama-7b"].shape
SMOLLM2 = Shape(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocab=49152, tied=True)
METHODS = ("first_last", "evenly_spaced", "block_influence", "greedy", "merge", "random")
ENDS = ("first_last", "evenly_spaced")  # keep the first and the last layer


def random_scores(source: Shape) -> Scores:
    """Scores in which every layer, head, neuron and channel differs."""
    generator = np.random.default_rng(0)
    layers = source.layers
    arrays = {
        "block_influence_L": generator.random(layers),
        "removal_order": generator.permutation(layers)[1:].astype(float),
        "merge_order": 1.0 + generator.permutation(layers - 1),
        "activation.neurons_LF": generator.random((layers, source.intermediate)),
        "activation.heads_LN": generator.random((layers, source.heads)),
        "activation.channels_H": generator.random(source.hidden),
        "activation.experts_LE": generator.random((layers, source.experts)),
    }
    return Scores(arrays)


def layers(source: Shape, num_layers: int, method: str) -> tuple[int, ...]:
    config = ArchitectureConfig(layers=num_layers, method=method)
    return plan_pruning(source, config, random_scores(source)).source_layers


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
        if num_layers > 1 and method in ENDS:
            assert kept[0] == 0
            assert kept[-1] == num_source - 1
    assert layers(source, num_source, method) == tuple(range(num_source))


def test_evenly_spaced_gaps_differ_by_at_most_one():
    for num_layers in range(2, 33):
        kept = layers(LLAMA_7B, num_layers, "evenly_spaced")
        gaps = {b - a for a, b in pairwise(kept)}
        assert max(gaps) - min(gaps) <= 1


def test_block_influence_keeps_the_layers_that_turn_the_stream_most():
    source = replace(SMOLLM2, layers=5)
    scores = Scores({"block_influence_L": np.array([0.5, 0.1, 0.3, 0.1, 0.4])})

    plans = [plan_pruning(source, ArchitectureConfig(layers=n, method="block_influence"), scores) for n in (1, 3, 4)]

    assert [plan.source_layers for plan in plans] == [(0,), (0, 2, 4), (0, 1, 2, 4)]  # of equals the earlier stays


def test_one_removal_order_serves_every_depth():
    source = replace(SMOLLM2, layers=4)
    scores = Scores({"removal_order": np.array([2.0, 0.0, 3.0])})

    kept = [
        plan_pruning(source, ArchitectureConfig(layers=n, method="greedy"), scores).source_layers for n in (1, 2, 3)
    ]

    assert kept == [(1,), (1, 3), (0, 1, 3)]


def test_merged_groups_hold_every_layer_once():
    for num_layers in range(1, 30):
        config = ArchitectureConfig(layers=num_layers, method="merge")
        plan = plan_pruning(SMOLLM2, config, random_scores(SMOLLM2))
        groups = [(start, *others) for start, others in zip(plan.source_layers, plan.merged_layers, strict=True)]
        assert [layer for group in groups for layer in group] == list(range(30))


def test_random_layers_depend_on_the_seed_alone():
    config = ArchitectureConfig(layers=6, method="random")
    plans = [plan_pruning(SMOLLM2, config, seed=seed).source_layers for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_the_best_neurons_and_channels_stay():
    source = Shape(layers=2, hidden=4, intermediate=5, heads=2, kv_heads=2, head_dim=2, vocab=9)
    scores = Scores(
        {
            "activation.neurons_LF": np.array([[5, 1, 4, 2, 3], [1, 1, 1, 9, 1]]),
            "activation.channels_H": np.array([0.1, 0.4, 0.2, 0.3]),
        }
    )

    plan = plan_pruning(source, ArchitectureConfig(intermediate=3, hidden=2), scores)

    assert plan.neurons == ((0, 2, 4), (0, 1, 3))
    assert plan.channels == (1, 3)


def test_the_best_experts_stay_and_are_scored_together_where_layers_are_merged():
    source = replace(SMOLLM2, family="qwen3_moe", layers=3, experts=4, active_experts=1)
    scores = Scores(
        {
            "activation.experts_LE": np.array([[5, 1, 4, 2], [1, 9, 1, 1], [0, 0, 1, 2.0]]),
            "merge_order": np.array([1.0, 2.0]),
        }
    )
    plan = plan_pruning(source, ArchitectureConfig(experts=2), scores)
    assert plan.experts == ((0, 2), (0, 1), (2, 3))
    assert plan.draft == replace(source, experts=2)
    merged = plan_pruning(source, ArchitectureConfig(layers=2, experts=2, method="merge"), scores)
    assert merged.experts == ((0, 1), (2, 3))
    assert needed_scores(source, ArchitectureConfig(experts=2)) == {"activation.experts_LE"}


def heads_kept(scores, heads, kv_heads):
    source = Shape(layers=1, hidden=12, intermediate=4, heads=6, kv_heads=3, head_dim=2, vocab=9)
    config = ArchitectureConfig(heads=heads, kv_heads=kv_heads)
    plan = plan_pruning(source, config, Scores({"activation.heads_LN": np.array([scores])}))
    return plan.heads, plan.kv_heads


def test_groups_leave_whole_or_lose_one_head_each():
    scores = [1, 2, 9, 0, 3, 4]  # groups of two: (1, 2), (9, 0), (3, 4)
    assert heads_kept(scores, 4, 2) == (((2, 3, 4, 5),), ((1, 2),))
    assert heads_kept(scores, 3, 3) == (((1, 2, 5),), None)
    assert heads_kept(scores, 2, 2) == (((2, 5),), ((1, 2),))  # a group is worth what would stay of it
    assert heads_kept(scores, 2, 1) == (((2, 3),), ((1,),))
    assert heads_kept([4, 4, 5, 0, 1, 1], 1, 1) == (((2,),), ((1,),))


def test_merged_layers_are_scored_together():
    source = Shape(layers=3, hidden=4, intermediate=3, heads=2, kv_heads=2, head_dim=2, vocab=9)
    scores = Scores(
        {
            "merge_order": np.array([1.0, 2.0]),
            "activation.neurons_LF": np.array([[3.0, 2, 0], [0, 2, 3], [0, 0, 9]]),
        }
    )

    plan = plan_pruning(source, ArchitectureConfig(layers=2, intermediate=1, method="merge"), scores)

    assert plan.merged_layers == ((1,), ())
    assert plan.neurons == ((1,), (2,))  # 1.5, 2, 1.5 together


def test_scores_are_asked_for_only_where_something_is_cut():
    def needed(**architecture):
        return needed_scores(SMOLLM2, ArchitectureConfig.model_validate({"method": "first_last", **architecture}))

    assert needed(layers=6) == set()
    assert needed(layers=30, method="greedy") == set()
    assert needed(layers=6, method="greedy") == {"removal_order"}
    assert needed(layers=6, method="merge", hidden=288) == {"merge_order", "activation.channels_H"}
    assert needed(layers=6, heads=3, width_method="flap") == {"flap.heads_LN"}
    assert needed(layers=6, intermediate=100, width_method="random") == set()


def test_a_plan_for_another_target_is_refused(tmp_path):
    target, file = tmp_path / "target", tmp_path / "plan.json"
    target.mkdir()
    (target / "model.safetensors").write_bytes(bytes(8))
    config = ArchitectureConfig(layers=6, method="first_last")
    plan = plan_pruning(SMOLLM2, config, target=fingerprint_checkpoint(target))
    file.write_text(plan.to_json())
    assert load_plan(file, SMOLLM2, target=target) == load_plan(file, SMOLLM2, target=None) == plan
    (target / "model.safetensors").write_bytes(bytes(7) + b"1")
    this = fingerprint_checkpoint(target)
    with rejects(plan.target[:12], this[:12]):
        load_plan(file, SMOLLM2, target=target)
    with rejects("plan.json", 30, 31):
        load_plan(file, replace(SMOLLM2, layers=31), target=None)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 100_000, '{"source_layers": [' + "9" * 5000 + "]}"], ids=lambda text: text[:20]
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with rejects("plan.json"):
        load_plan(tmp_path / "plan.json", SMOLLM2, target=None)


def full_plan():
    """A plan of a small source that cuts everything."""
    source = Shape(layers=4, hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocab=99)
    config = ArchitectureConfig(layers=2, hidden=32, intermediate=96, heads=2, method="block_influence")
    return with_experts(plan_pruning(source, config, random_scores(source)))


def with_experts(plan):
    """The plan where there are experts too, three of five: no recipe prunes both neurons and experts."""
    source, draft = (replace(each, experts=n, active_experts=2) for each, n in ((plan.source, 5), (plan.draft, 3)))
    return replace(plan, source=source, draft=draft, experts=((0, 2, 3), (1, 2, 4)))


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda plan: plan.update(source_layers=["a", 1]), "source_layers.0"),
        (lambda plan: plan.update(source_layers=[0, 4]), "source_layers"),
        (lambda plan: plan.update(source_layers=[0, -1]), "source_layers"),
        (lambda plan: plan.update(source_layers=[0]), "source_layers"),
        (lambda plan: plan["draft"].update(layers=10**12), "draft"),
        (lambda plan: plan["draft"].update(head_dim=7), "draft"),
        (lambda plan: plan["neurons"].pop(), "neurons"),
        (lambda plan: plan.update(neurons=None), "neurons"),
        (lambda plan: plan["heads"][0].__setitem__(0, 99), "heads"),
        (lambda plan: plan.update(channels=None), "channels"),
        (lambda plan: plan["channels"].__setitem__(0, 10**12), "channels"),
        (lambda plan: plan.update(merged_layers=[[9]]), "merged_layers"),
        (lambda plan: plan["experts"][0].__setitem__(0, 9), "experts"),
        (lambda plan: plan.update(experts=None), "experts"),
        (lambda plan: plan["draft"].update(experts=1), "draft"),
    ],
)
def test_a_plan_that_cannot_be_cut_by_is_refused(tmp_path, edit, named):
    plan = full_plan()
    record = json.loads(plan.to_json())
    edit(record)
    (tmp_path / "plan.json").write_text(json.dumps(record))
    with rejects("plan.json:", named):
        load_plan(tmp_path / "plan.json", plan.source, target=None)


@pytest.mark.parametrize("method", METHODS)
def test_every_plan_that_is_made_can_be_read(tmp_path, method):
    source = replace(full_plan().source, experts=0, active_experts=0)
    for config in (
        {"layers": 2},
        {"layers": 4, "heads": 2},
        {"layers": 3, "intermediate": 64, "kv_heads": 1, "heads": 2},
    ):
        made = plan_pruning(source, ArchitectureConfig(method=method, **config), random_scores(source))
        for plan in (made, made.with_vocab(104)):
            (tmp_path / "plan.json").write_text(plan.to_json())
            assert load_plan(tmp_path / "plan.json", source, target=None) == plan

"""A mixture while training: losses measured, weights moved and logged."""

import json
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from composer.utils import dist

import distill.text_training
from distill.recipe.sections import TextConfig
from distill.text_data import text_eval_loaders
from distill.text_training import DynamicLoading, held_out_losses, next_token_nll, reference_losses

VOCABULARY = 264
CPU = torch.device("cpu")


def tiny_net() -> torch.nn.Module:
    """Next-token logits of an embedding."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY)).eval()


@pytest.fixture
def config(tmp_path) -> TextConfig:
    for name, count in (("a", 40), ("b", 15)):
        rows = "".join(json.dumps({"text": f"{name} {i * i:05d}"}) + "\n" for i in range(count))
        (tmp_path / f"{name}.jsonl").write_text(rows)
    domains = [
        {"name": "a", "path": str(tmp_path / "a.jsonl"), "reference_loss_nats": 2.0},
        {"name": "b", "path": str(tmp_path / "b.jsonl"), "reference_loss_nats": 1.7},
    ]
    return TextConfig(domains=domains, max_seq_len=8, num_eval_sequences=3, update_interval="2ba")


@pytest.fixture
def loading() -> DynamicLoading:
    """After a batch in which a is 0.5 above its reference and b below its own."""
    domains: Any = SimpleNamespace(names=("a", "b"), weights=[0.5, 0.5], num_used={"a": 3, "b": 5})
    return DynamicLoading(
        domains,
        lambda _: {"a": 2.5, "b": 1.6},
        rule="paper",
        update_interval="2ba",
        references={"a": 2.0, "b": 1.7},
        rates="distill.lr",
    )


def update(loading: DynamicLoading) -> dict[str, float]:
    """What is logged of it."""
    log: dict[str, float] = {}
    state, logger = SimpleNamespace(timestamp=SimpleNamespace(batch=2)), SimpleNamespace(log_metrics=log.update)
    loading.update(cast("Any", state), cast("Any", logger))
    return log


def test_the_weights_follow_the_losses_and_are_logged(loading):
    log = update(loading)
    weights = loading.domains.weights
    assert weights == pytest.approx([math.exp(0.5) / (math.exp(0.5) + 1), 1 / (math.exp(0.5) + 1)])
    assert loading.history == [{"batch": 2, "losses": [2.5, 1.6], "weights": weights}]
    logged = [[log[f"mixture/{name}/{key}"] for name in "ab"] for key in ("loss", "weight", "sequences")]
    assert logged == [[2.5, 1.6], weights, [3, 5]]


def test_the_weights_of_rank_0_are_those_of_all(loading, monkeypatch):
    def broadcast(values, src=0):  # Composer has messages of its own
        if isinstance(values[0], list):
            assert src == 0
            values[0] = [0.25, 0.75]

    monkeypatch.setattr(distill.text_training.dist, "broadcast_object_list", broadcast)
    update(loading)
    assert loading.domains.weights == [0.25, 0.75]


# Losses


def test_held_out_loss_is_the_mean_over_all_tokens(config, tokenizer):
    loaders = text_eval_loaders(config, tokenizer, batch_size=2)  # batches of two sequences and one
    net = tiny_net()
    for name, loss in held_out_losses(net, loaders, device=CPU).items():
        ids_BT = torch.stack([sample["input_ids"] for sample in loaders[name].dataset])
        logp_BTV = net(ids_BT).double().log_softmax(-1)
        expected = -logp_BTV[:, :-1].gather(2, ids_BT[:, 1:, None]).mean()
        assert loss == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 2), (4, 2), (2, 1)])
def test_processes_together_measure_what_one_measures(config, tokenizer, monkeypatch, world_size, batch_size):
    """Three held-out sequences do not divide evenly: what fills up a process's share counts nowhere."""
    net, calls = tiny_net(), []
    alone = held_out_losses(net, text_eval_loaders(config, tokenizer, batch_size=2), device=CPU)

    def losses_of(batch):
        calls.append(rank)
        return next_token_nll(net(batch["input_ids"]), batch["input_ids"]).unbind()

    monkeypatch.setattr(dist, "get_world_size", lambda: world_size)
    sums: dict[str, torch.Tensor] = {}
    for rank in range(world_size):
        monkeypatch.setattr(dist, "get_global_rank", lambda rank=rank: rank)
        for name, loader in text_eval_loaders(config, tokenizer, batch_size=batch_size).items():

            def all_reduce(tensor, name=name):
                sums[name] = sums.get(name, 0) + tensor
                tensor.copy_(sums[name])

            monkeypatch.setattr(dist, "all_reduce", all_reduce)
            last = distill.text_training.held_out_loss(losses_of, loader, device=CPU)
            if rank == world_size - 1:
                assert last == pytest.approx(alone[name], rel=1e-6)
    assert {name: int(total[1]) for name, total in sums.items()} == {"a": 3 * 7, "b": 3 * 7}
    assert len({calls.count(rank) for rank in range(world_size)}) == 1  # as FSDP2 must have it


def test_references_are_measured_only_where_the_recipe_gives_none(config):
    def never():
        raise AssertionError

    assert reference_losses(config, never) == {"a": 2.0, "b": 1.7}
    first, second = config.domains
    partly = config.model_copy(update={"domains": (first, second.model_copy(update={"reference_loss_nats": None}))})
    assert reference_losses(partly, lambda: {"a": 1.0, "b": 2.0}) == {"a": 2.0, "b": 2.0}
    fixed = partly.model_copy(update={"mixture": "fixed"})
    assert reference_losses(fixed, never) == {"a": 2.0, "b": math.inf}

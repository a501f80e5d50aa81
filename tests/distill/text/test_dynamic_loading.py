"""Training on a mixture: losses measured, weights moved and logged, and a resumed training equal to a whole one."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from composer import Trainer
from composer.loggers import InMemoryLogger
from composer.models import ComposerModel
from composer.utils import dist

import distill.text_training
from distill.recipe.sections import TextConfig
from distill.text_data import text_eval_loaders, text_loader
from distill.text_training import DynamicLoading, held_out_losses, next_token_nll, reference_losses

VOCABULARY = 264
CPU = torch.device("cpu")


class TinyModel(ComposerModel):
    """Next-token logits of an embedding."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))

    def forward(self, batch: Mapping[str, Any]) -> torch.Tensor:
        return self.net(batch["input_ids"])

    def loss(self, outputs: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
        return next_token_nll(outputs, batch["input_ids"]).mean()


@pytest.fixture
def config(tmp_path):
    def make(**mixture) -> TextConfig:
        for name, count in (("a", 40), ("b", 15)):
            rows = "".join(json.dumps({"text": f"{name} {i * i:05d}"}) + "\n" for i in range(count))
            (tmp_path / f"{name}.jsonl").write_text(rows)
        domains = [
            {"name": "a", "path": str(tmp_path / "a.jsonl"), "reference_loss_nats": 2.0},
            {"name": "b", "path": str(tmp_path / "b.jsonl"), "reference_loss_nats": 1.7},
        ]
        settings = {"max_seq_len": 8, "num_eval_sequences": 3, "update_interval": "2ba", **mixture}
        return TextConfig(domains=domains, **settings)

    return make


@pytest.fixture
def trained(config, tokenizer):
    """trained(max_duration, **keys of mixture) trains with batches of 4 -> (domains, callback, logger)."""

    def train(max_duration: str, **mixture):
        text, model, logger = config(**mixture), TinyModel(), InMemoryLogger()
        loader, domains = text_loader(text, tokenizer, batch_size=4, seed=1)
        held_out = text_eval_loaders(text, tokenizer, batch_size=2)
        loading = DynamicLoading(
            domains,
            lambda _: held_out_losses(model.net, held_out, device=CPU),
            rule=text.mixture,
            update_interval=text.update_interval,
            references=reference_losses(text, dict),
            rates="distill.lr",
        )
        trainer = Trainer(
            model=model,
            train_dataloader=loader,
            max_duration=max_duration,
            optimizers=torch.optim.AdamW(model.parameters(), lr=0.03),
            callbacks=[loading],
            loggers=[logger],
            device="cpu",
            progress_bar=False,
        )
        trainer.fit()
        trainer.close()
        return domains, loading, logger

    return train


def test_every_interval_the_weights_follow_the_losses_and_are_logged(trained):
    domains, loading, logger = trained("6ba")
    assert [update["batch"] for update in loading.history] == [2, 4, 6]
    weights = [0.5, 0.5]
    for update in loading.history:
        parts = [
            w * math.exp(max(loss - 2.0 + 0.3 * i, 0))
            for i, (w, loss) in enumerate(zip(weights, update["losses"], strict=True))
        ]
        weights = update["weights"]
        assert weights == pytest.approx([part / sum(parts) for part in parts], abs=1e-12)
    assert domains.weights == weights
    for position, name in enumerate("ab"):
        logged = {
            key: [value for _, value in logger.data[f"mixture/{name}/{key}"]] for key in ("weight", "loss", "sequences")
        }
        assert logged["weight"] == [update["weights"][position] for update in loading.history]
        assert logged["loss"] == [update["losses"][position] for update in loading.history]
        assert logged["sequences"][-1] == domains.num_used[name]


def test_the_weights_of_rank_0_are_those_of_all(trained, monkeypatch):
    def broadcast(values, src=0):  # Composer has messages of its own
        if isinstance(values[0], list):
            assert src == 0
            values[0] = [0.25, 0.75]

    monkeypatch.setattr(distill.text_training.dist, "broadcast_object_list", broadcast)
    domains, _, _ = trained("2ba")
    assert domains.weights == [0.25, 0.75]


# Losses


def test_held_out_loss_is_the_mean_over_all_tokens(config, tokenizer):
    loaders = text_eval_loaders(config(), tokenizer, batch_size=2)  # batches of two sequences and one
    net = TinyModel().net.eval()
    for name, loss in held_out_losses(net, loaders, device=CPU).items():
        ids_BT = torch.stack([sample["input_ids"] for sample in loaders[name].dataset])
        logp_BTV = net(ids_BT).double().log_softmax(-1)
        expected = -logp_BTV[:, :-1].gather(2, ids_BT[:, 1:, None]).mean()
        assert loss == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 2), (4, 2), (2, 1)])
def test_processes_together_measure_what_one_measures(config, tokenizer, monkeypatch, world_size, batch_size):
    """Three held-out sequences do not divide evenly: what fills up a process's share counts nowhere."""
    net, calls = TinyModel().net.eval(), []
    alone = held_out_losses(net, text_eval_loaders(config(), tokenizer, batch_size=2), device=CPU)

    def losses_of(batch):
        calls.append(rank)
        return next_token_nll(net(batch["input_ids"]), batch["input_ids"]).unbind()

    monkeypatch.setattr(dist, "get_world_size", lambda: world_size)
    sums: dict[str, torch.Tensor] = {}
    for rank in range(world_size):
        monkeypatch.setattr(dist, "get_global_rank", lambda rank=rank: rank)
        for name, loader in text_eval_loaders(config(), tokenizer, batch_size=batch_size).items():

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

    given = config()
    assert reference_losses(given, never) == {"a": 2.0, "b": 1.7}
    first, second = given.domains
    partly = given.model_copy(update={"domains": (first, second.model_copy(update={"reference_loss_nats": None}))})
    assert reference_losses(partly, lambda: {"a": 1.0, "b": 2.0}) == {"a": 2.0, "b": 2.0}
    fixed = partly.model_copy(update={"mixture": "fixed"})
    assert reference_losses(fixed, never) == {"a": 2.0, "b": math.inf}

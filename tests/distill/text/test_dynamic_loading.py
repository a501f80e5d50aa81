"""Training on a mixture: losses measured, weights moved and logged, and a resumed training equal to a whole one."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from composer import Trainer
from composer.loggers import InMemoryLogger
from composer.models import ComposerModel
from composer.utils import dist
from transformers import AutoTokenizer

import distill.text.dynamic_loading
from architectures.errors import UserError
from distill.checkpoints.files import find_checkpoints
from distill.checkpoints.writer import CheckpointWriter
from distill.recipe.sections.text import MixtureConfig, TextConfig
from distill.text.dynamic_loading import (
    DynamicLoading,
    RandomStateOnResume,
    finite_losses,
    held_out_losses,
    next_token_nll,
    reference_losses,
)
from distill.text.mixture import text_eval_loaders, text_loader
from distill.text.streams import Share

VOCABULARY = 264
CPU = torch.device("cpu")


class TinyModel(ComposerModel):
    """Next-token logits of an embedding with dropout, so that what is learned depends on torch's random state."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(
                torch.nn.Embedding(VOCABULARY, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, VOCABULARY)
            )
        self.batches: list[list[list[int]]] = []

    def forward(self, batch: Mapping[str, Any]) -> torch.Tensor:
        self.batches.append(batch["input_ids"].tolist())
        return self.net(batch["input_ids"])

    def loss(self, outputs: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
        return next_token_nll(outputs, batch["input_ids"]).mean()


@pytest.fixture(scope="module")
def tokenizer(tiny_target):
    return AutoTokenizer.from_pretrained(tiny_target)


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
        mixture = {"rule": "paper", "update_interval": "2ba", **mixture}
        return TextConfig(domains=domains, max_seq_len=8, num_eval_sequences=3, mixture=mixture)

    return make


def train_tiny(text: TextConfig, tokenizer, folder: Path, *, max_duration: str, checkpoint=None):
    """Train with global batches of 4, a checkpoint each; (model, domains, callback, logger) of this process."""
    model, logger = TinyModel(), InMemoryLogger()
    if dist.get_world_size() > 1:
        dist.initialize_dist("cpu", timeout=60)
    size, share = 4 // dist.get_world_size(), Share.of_all()
    loader, domains = text_loader(text, tokenizer, batch_size=size, seed=1, share=share)
    held_out = text_eval_loaders(text, tokenizer, batch_size=2)

    def measure(state):
        model.net.eval()
        losses = held_out_losses(model.net, held_out, device=CPU)
        model.net.train()
        return losses

    references = reference_losses(text, dict)
    loading = DynamicLoading(domains, measure, config=text.mixture, references=references, rates="distill.lr")
    saving = CheckpointWriter(folder, save_interval="1ba", num_to_keep=99)
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        max_duration=max_duration,
        optimizers=torch.optim.AdamW(model.parameters(), lr=0.03),
        callbacks=[saving, RandomStateOnResume(), loading],
        loggers=[logger],
        device="cpu",
        progress_bar=False,
        seed=3,
        load_path=None if checkpoint is None else str(checkpoint),
    )
    try:
        trainer.fit()
    finally:
        trainer.close()
    return model, domains, loading, logger


@pytest.fixture
def trained(config, tokenizer, tmp_path):
    """trained(folder, max_duration, checkpoint, **keys of mixture) -> what train_tiny returns."""

    def train(folder: str, max_duration: str, checkpoint=None, **mixture):
        return train_tiny(
            config(**mixture), tokenizer, tmp_path / folder, max_duration=max_duration, checkpoint=checkpoint
        )

    return train


@pytest.mark.parametrize("stop", [1, 4, 5])  # before the first update, at one, between two
def test_a_resumed_training_equals_an_uninterrupted_one(trained, tmp_path, stop):
    model, domains, loading, _ = trained("whole", "12ba")
    trained("parts", f"{stop}ba")
    torch.manual_seed(99)  # a new process would not stand where this one does
    resumed, resumed_domains, resumed_loading, _ = trained("parts", "12ba", find_checkpoints(tmp_path / "parts")[-1])
    assert len(resumed.batches) == 12 - stop
    assert resumed.batches == model.batches[stop:]
    for name, weight in model.net.state_dict().items():
        assert torch.equal(weight, resumed.net.state_dict()[name]), name
    assert resumed_domains.weights == domains.weights
    assert resumed_domains.num_used == domains.num_used
    assert resumed_loading.history == loading.history
    assert len({tuple(update["weights"]) for update in loading.history}) == 6


TWO_PROCESSES = """
import importlib.util, sys, torch
from pathlib import Path
from transformers import AutoTokenizer
from distill.recipe.sections.text import TextConfig
spec = importlib.util.spec_from_file_location("tiny", sys.argv[1])
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
text = TextConfig.model_validate_json(Path(sys.argv[2]).read_text())
tokenizer = AutoTokenizer.from_pretrained(sys.argv[3])
model, domains, loading, _ = tiny.train_tiny(text, tokenizer, Path(sys.argv[4]), max_duration="4ba")
result = {"batches": model.batches, "weights": domains.weights, "used": domains.num_used, "history": loading.history}
torch.save(result, f"{sys.argv[4]}/result{tiny.dist.get_global_rank()}.pt")
"""


@pytest.mark.usefixtures("warm")
def test_two_processes_read_what_one_reads_and_agree_on_the_weights(trained, config, tiny_target, tmp_path):
    model, domains, loading, _ = trained("one", "4ba")
    (tmp_path / "two").mkdir()
    (tmp_path / "script.py").write_text(TWO_PROCESSES, encoding="utf-8")
    (tmp_path / "text.json").write_text(config().model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", "composer", "-n", "2", str(tmp_path / "script.py"), __file__]
    arguments = [str(tmp_path / "text.json"), str(tiny_target), str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    completed = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    first, second = (torch.load(tmp_path / "two" / f"result{rank}.pt") for rank in (0, 1))
    for step, batch in enumerate(model.batches):
        assert [first["batches"][step], second["batches"][step]] == [batch[0::2], batch[1::2]]
    assert first["weights"] == second["weights"] != [0.5, 0.5]
    assert first["used"] == second["used"] == domains.num_used
    assert first["history"] == second["history"]
    assert [update["batch"] for update in first["history"]] == [update["batch"] for update in loading.history] == [2, 4]


def test_every_interval_the_weights_follow_the_losses_and_are_logged(trained):
    _, domains, loading, logger = trained("run", "6ba")
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


def test_fixed_weights_are_logged_with_their_losses(trained):
    _, domains, loading, _ = trained("run", "4ba", rule="fixed")
    assert domains.weights == [0.5, 0.5]
    assert [update["weights"] for update in loading.history] == [[0.5, 0.5]] * 2
    assert loading.history[0]["losses"] != loading.history[1]["losses"]


def test_the_weights_of_rank_0_are_those_of_all(trained, monkeypatch):
    def broadcast(values, src=0):  # Composer has messages of its own
        if isinstance(values[0], list):
            assert src == 0
            values[0] = [0.25, 0.75]

    monkeypatch.setattr(distill.text.dynamic_loading.dist, "broadcast_object_list", broadcast)
    _, domains, _, _ = trained("run", "2ba")
    assert domains.weights == [0.25, 0.75]


def test_a_loss_that_is_no_number_is_said(trained, monkeypatch):
    monkeypatch.setattr(distill.text.dynamic_loading, "held_out_loss", lambda *_, **__: math.nan)
    with pytest.raises(UserError) as raised:
        trained("run", "2ba")
    assert str(raised.value) == (
        "The held-out loss of text domain a is nan after 2 batches: training diverged. Lower distill.lr."
    )


def test_losses_come_in_the_order_of_the_names():
    assert finite_losses({"b": 1.0, "a": 2.0}, ["a", "b"], batch=0, rates="lr") == [2.0, 1.0]


# Losses


def test_held_out_loss_is_the_mean_over_all_tokens(config, tokenizer):
    loaders = text_eval_loaders(config(), tokenizer, batch_size=2)  # batches of two sequences and one
    net = TinyModel().net.eval()
    for name, loss in held_out_losses(net, loaders, device=CPU).items():
        ids_BT = torch.stack([sample["input_ids"] for sample in loaders[name].dataset])
        logp_BTV = net(ids_BT).double().log_softmax(-1)
        expected = -logp_BTV[:, :-1].gather(2, ids_BT[:, 1:, None]).mean()
        assert loss == pytest.approx(expected.item(), rel=1e-6)


def test_an_even_guess_costs_the_logarithm_of_the_vocabulary(config, tokenizer):
    loaders = text_eval_loaders(config(), tokenizer, batch_size=2)
    losses = held_out_losses(lambda ids_BT: torch.zeros(*ids_BT.shape, VOCABULARY), loaders, device=CPU)
    assert losses == pytest.approx({"a": math.log(VOCABULARY), "b": math.log(VOCABULARY)})


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
            last = distill.text.dynamic_loading.held_out_loss(losses_of, loader, device=CPU)
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
    fixed = partly.model_copy(update={"mixture": MixtureConfig(rule="fixed")})
    assert reference_losses(fixed, never) == {"a": 2.0, "b": math.inf}

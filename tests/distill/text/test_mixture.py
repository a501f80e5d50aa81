"""Sequences drawn by the weights of a mixture: alike on every process, continued from any batch; and its rules."""

import json
import math
from collections import Counter
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from composer.utils import dist

import distill.text_training
from distill.recipe.sections import TextConfig
from distill.text_data import RULES, code_weights, fixed_weights, paper_weights, text_eval_loaders, text_loader
from distill.text_training import DynamicLoading, held_out_losses, next_token_nll, reference_losses
from tests.rejections import rejects


@pytest.fixture
def config(tmp_path, monkeypatch):
    """config(**keys of text) -> two domains a and b of 20 and 9 sequences, each sequence one row such as `a 0007`."""
    monkeypatch.setattr("distill.text_data.SHUFFLE_BLOCK", 4)

    def make(*, weights: tuple[float, float] = (1, 1), **keys) -> TextConfig:
        for name, count in (("a", 20), ("b", 9)):
            rows = "".join(json.dumps({"text": f"{name} {i:05d}"}) + "\n" for i in range(count))
            (tmp_path / f"{name}.jsonl").write_text(rows)
        domains = [
            {"name": name, "path": str(tmp_path / f"{name}.jsonl"), "weight": float(weight)}
            for name, weight in zip("ab", weights, strict=True)
        ]
        return TextConfig(**{"domains": domains, "max_seq_len": 8, "num_eval_sequences": 2, **keys})

    return make


def texts_of(batch, tokenizer) -> list[str]:
    return [tokenizer.decode(ids[:-1]) for ids in batch["input_ids"].tolist()]


def first_texts(loader, tokenizer, num_batches: int) -> list[str]:
    return list(chain.from_iterable(texts_of(batch, tokenizer) for batch in islice(loader, num_batches)))


def test_a_batch_in_full(config, tokenizer):
    loader, domains = text_loader(config(), tokenizer, batch_size=3, seed=1)
    batch = next(iter(loader))
    assert set(batch) == {"input_ids", "domain"}
    assert batch["input_ids"].shape == (3, 8)
    assert batch["input_ids"].dtype == batch["domain"].dtype == torch.int64
    assert ["ab"[domain] for domain in batch["domain"]] == [text[0] for text in texts_of(batch, tokenizer)]
    assert sum(domains.num_used.values()) == 3


def test_held_out_batches_are_the_first_rows_of_their_domain(config, tokenizer):
    loaders = text_eval_loaders(config(num_eval_sequences=3), tokenizer, batch_size=2)
    for position, name in enumerate("ab"):
        batches = list(loaders[name])
        assert [batch["domain"].tolist() for batch in batches] == [[position] * 2, [position]]
        assert [text for batch in batches for text in texts_of(batch, tokenizer)] == [
            f"{name} {i:05d}" for i in range(3)
        ]


def test_nothing_held_out_is_trained_on_over_many_epochs(config, tokenizer):
    loader, domains = text_loader(config(), tokenizer, batch_size=10, seed=1)
    seen = Counter(first_texts(loader, tokenizer, 20))
    assert set(seen) == {f"a {i:05d}" for i in range(2, 20)} | {f"b {i:05d}" for i in range(2, 9)}
    assert sum(count for text, count in seen.items() if text[0] == "b") == domains.num_used["b"]
    assert domains.streams["b"].epoch > 5


def test_the_share_of_sequences_follows_the_weights(config, tokenizer):
    loader, domains = text_loader(config(weights=(3, 1)), tokenizer, batch_size=100, seed=5)
    assert domains.weights == [0.75, 0.25]
    batches = iter(loader)
    for weights in ([0.75, 0.25], [0.1, 0.9]):
        domains.weights = weights
        before = domains.num_used["a"]
        list(islice(batches, 20))
        used = domains.num_used["a"] - before
        chi_square = (used - 2000 * weights[0]) ** 2 / (2000 * weights[0] * weights[1])
        assert chi_square < 6.63, used  # of one degree of freedom: 1 % of all seeds fail, this one does not


def test_new_weights_reach_the_very_next_sequence(config, tokenizer):
    loader, domains = text_loader(config(), tokenizer, batch_size=4, seed=1)
    batches = iter(loader)
    for weights in ([1.0, 0.0], [0.0, 1.0], [1.0, 0.0]):
        next(batches)
        domains.weights = weights
        assert next(batches)["domain"].tolist() == [weights.index(1.0)] * 4


def test_the_seed_decides(config, tokenizer):
    one, same, other = (
        first_texts(text_loader(config(), tokenizer, batch_size=4, seed=seed)[0], tokenizer, 5) for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_batch_of_one(config, tokenizer, world_size):
    text = config()
    alone, domains = text_loader(text, tokenizer, batch_size=2 * world_size, seed=1)
    whole = [texts_of(batch, tokenizer) for batch in islice(alone, 6)]

    def read(rank: int):
        loader, dataset = text_loader(text, tokenizer, batch_size=2, seed=1, rank=rank, size=world_size)
        return [texts_of(batch, tokenizer) for batch in islice(loader, 6)], dataset.state_dict()

    parts, states = zip(*map(read, range(world_size)), strict=True)
    for step, batch in enumerate(whole):
        assert [part[step] for part in parts] == [batch[rank::world_size] for rank in range(world_size)]
    for state in states:  # and every process stands where one alone stands
        assert torch.equal(state.pop("generator"), domains.generator.get_state())
        assert state == {key: value for key, value in domains.state_dict().items() if key != "generator"}


@pytest.mark.parametrize("num_before", [0, 1, 3, 8])
def test_a_resumed_dataset_equals_an_uninterrupted_one(config, tokenizer, num_before):
    loader, domains = text_loader(config(weights=(2, 1)), tokenizer, batch_size=5, seed=1)
    batches = iter(loader)
    list(islice(batches, num_before))
    domains.weights = [0.2, 0.8]
    state = domains.state_dict()
    after = list(chain.from_iterable(texts_of(batch, tokenizer) for batch in islice(batches, 10)))
    resumed, other = text_loader(config(weights=(2, 1)), tokenizer, batch_size=5, seed=1)
    first_texts(resumed, tokenizer, 2)
    other.load_state_dict(state)
    assert other.weights == [0.2, 0.8]
    assert first_texts(resumed, tokenizer, 10) == after
    assert other.num_used == domains.num_used


def test_reading_leaves_the_random_state_of_training_alone(config, tokenizer):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    loader, _ = text_loader(config(), tokenizer, batch_size=4, seed=1)
    first_texts(loader, tokenizer, 3)
    for held_out in text_eval_loaders(config(), tokenizer, batch_size=2).values():
        first_texts(held_out, tokenizer, 9)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("key", ["max_seq_len", "num_eval_sequences", "domains"])
def test_a_state_of_other_sequences_or_domains_is_refused(config, tokenizer, key):
    state = text_loader(config(), tokenizer, batch_size=1, seed=1)[1].state_dict()
    other = {"max_seq_len": 4, "num_eval_sequences": 1, "domains": config().domains[:1]}[key]
    text = config().model_copy(update={key: other})
    _, domains = text_loader(text, tokenizer, batch_size=1, seed=1)
    with rejects(f"text.{key}"):
        domains.load_state_dict(state)


def test_a_short_domain_is_refused_by_both_builders(config, tokenizer):
    text = config(num_eval_sequences=9)
    for build in (
        lambda: text_loader(text, tokenizer, batch_size=1, seed=1),
        lambda: text_eval_loaders(text, tokenizer, batch_size=1),
    ):
        with rejects("b.jsonl", "text.domains b"):
            build()


REFERENCES = [2.0, 1.0, 3.0]
WEIGHTS = [0.5, 0.3, 0.2]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("losses", [[2.5, 0.9, 3.0], [0.0, 0.0, 0.0], [12.0, 11.0, 10.0], [900.0, 1.0, 3.0]])
def test_weights_stay_a_distribution(rule, losses):
    weights = WEIGHTS
    for _ in range(50):
        weights = RULES[rule](weights, losses, REFERENCES)
        assert sum(weights) == pytest.approx(1, abs=1e-12)
        assert all(0 <= weight <= 1 for weight in weights)


def test_at_the_references_or_better_the_paper_changes_nothing():
    assert paper_weights(WEIGHTS, REFERENCES, REFERENCES) == WEIGHTS
    assert paper_weights(WEIGHTS, [1.9, 0.1, 0.0], REFERENCES) == WEIGHTS


@pytest.mark.parametrize("rule", ["paper", "code"])
def test_a_domain_above_its_reference_gains_and_the_others_keep_their_proportion(rule):
    new = RULES[rule](WEIGHTS, [2.0, 1.4, 3.0], REFERENCES)
    assert new[1] > WEIGHTS[1]
    assert new[0] < WEIGHTS[0]
    assert new[0] / new[2] == pytest.approx(WEIGHTS[0] / WEIGHTS[2], rel=1e-3)


def test_the_paper_by_hand():
    # 0.5*e^0.1, 0.3 (better than its reference), 0.2*e^0.2, over their sum
    parts = [0.5 * math.exp(0.1), 0.3, 0.2 * math.exp(0.2)]
    assert paper_weights(WEIGHTS, [2.1, 0.4, 3.2], REFERENCES) == pytest.approx(
        [p / sum(parts) for p in parts], abs=1e-15
    )
    assert paper_weights([0.5, 0.5], [math.log(3), 0.0], [0.0, 0.0]) == pytest.approx([0.75, 0.25], abs=1e-15)


def test_the_code_by_hand():
    # ln 3 above: 0.75 and 0.25; then 0.9999 of that and 0.0001 of one half
    expected = [0.9999 * 0.75 + 0.00005, 0.9999 * 0.25 + 0.00005]
    assert code_weights([0.5, 0.5], [math.log(3), 0.0], [0.0, 0.0]) == pytest.approx(expected, abs=1e-15)
    assert code_weights([0.9, 0.1], [1.0, 1.0], [1.0, 1.0]) == pytest.approx([0.89996, 0.10004], abs=1e-12)


def test_the_code_as_released_in_float32():
    """update_proportion of LLM-Shearing's DynamicLoadingCallback, its lines in its order."""
    losses = [2.1, 0.4, 3.2]
    diff = torch.tensor(losses) - torch.tensor(REFERENCES)
    released = torch.nn.functional.softmax(torch.log(torch.tensor(WEIGHTS)) + 1.0 * diff, dim=0)
    released = ((1 - 1e-4) * released + 1e-4 / 3).numpy().astype("float64")
    released = (released / released.sum()).tolist()
    assert code_weights(WEIGHTS, losses, REFERENCES) == pytest.approx(released, abs=1e-6)


def test_the_code_never_loses_a_domain_and_the_paper_may():
    paper = code = [0.5, 0.5]
    for _ in range(300):
        paper = paper_weights(paper, [9.0, 0.0], [0.0, 0.0])
        code = code_weights(code, [9.0, 0.0], [0.0, 0.0])
    assert paper[1] == 0.0
    assert code[1] == pytest.approx(5e-5, rel=1e-3)


def test_fixed_weights_are_fixed():
    assert fixed_weights(WEIGHTS, [9.0, 9.0, 0.0], REFERENCES) == WEIGHTS


# While training: losses measured, weights moved and logged

VOCABULARY = 264
CPU = torch.device("cpu")


def tiny_net() -> torch.nn.Module:
    """Next-token logits of an embedding."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY)).eval()


@pytest.fixture
def measured(tmp_path) -> TextConfig:
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


def test_held_out_loss_is_the_mean_over_all_tokens(measured, tokenizer):
    loaders = text_eval_loaders(measured, tokenizer, batch_size=2)  # batches of two sequences and one
    net = tiny_net()
    for name, loss in held_out_losses(net, loaders, device=CPU).items():
        ids_BT = torch.stack([sample["input_ids"] for sample in loaders[name].dataset])
        logp_BTV = net(ids_BT).double().log_softmax(-1)
        expected = -logp_BTV[:, :-1].gather(2, ids_BT[:, 1:, None]).mean()
        assert loss == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 2), (4, 2), (2, 1)])
def test_processes_together_measure_what_one_measures(measured, tokenizer, monkeypatch, world_size, batch_size):
    """Three held-out sequences do not divide evenly: what fills up a process's share counts nowhere."""
    net, calls = tiny_net(), []
    alone = held_out_losses(net, text_eval_loaders(measured, tokenizer, batch_size=2), device=CPU)

    def losses_of(batch):
        calls.append(rank)
        return next_token_nll(net(batch["input_ids"]), batch["input_ids"]).unbind()

    monkeypatch.setattr(dist, "get_world_size", lambda: world_size)
    sums: dict[str, torch.Tensor] = {}
    for rank in range(world_size):
        monkeypatch.setattr(dist, "get_global_rank", lambda rank=rank: rank)
        for name, loader in text_eval_loaders(measured, tokenizer, batch_size=batch_size).items():

            def all_reduce(tensor, name=name):
                sums[name] = sums.get(name, 0) + tensor
                tensor.copy_(sums[name])

            monkeypatch.setattr(dist, "all_reduce", all_reduce)
            last = distill.text_training.held_out_loss(losses_of, loader, device=CPU)
            if rank == world_size - 1:
                assert last == pytest.approx(alone[name], rel=1e-6)
    assert {name: int(total[1]) for name, total in sums.items()} == {"a": 3 * 7, "b": 3 * 7}
    assert len({calls.count(rank) for rank in range(world_size)}) == 1  # as FSDP2 must have it


def test_references_are_measured_only_where_the_recipe_gives_none(measured):
    def never():
        raise AssertionError

    assert reference_losses(measured, never) == {"a": 2.0, "b": 1.7}
    first, second = measured.domains
    partly = measured.model_copy(update={"domains": (first, second.model_copy(update={"reference_loss_nats": None}))})
    assert reference_losses(partly, lambda: {"a": 1.0, "b": 2.0}) == {"a": 2.0, "b": 2.0}
    fixed = partly.model_copy(update={"mixture": "fixed"})
    assert reference_losses(fixed, never) == {"a": 2.0, "b": math.inf}

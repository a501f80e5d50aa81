"""Scores of parts and orders of layers are those of one process to the last bit, however many compute them."""

import numpy as np
import pytest
import torch

from architectures.families import FAMILIES
from architectures.importance import activation_scores as scoring
from architectures.importance.activation_scores import activation_scores
from architectures.importance.layer_search import LayerSearch, merge_order, removal_order
from architectures.kept import Kept
from architectures.sharing import ALONE
from eval.models.loading import load_model
from tests.sharing import by_processes

IDS_ST = torch.randint(3, 260, (5, 20), generator=torch.Generator().manual_seed(7))
GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 512}
TRIED = ("llama", "gpt2", "t5")
ORDERS = [(name, removal_order) for name in TRIED]
ORDERS += [(name, merge_order) for name in TRIED if "merge" not in FAMILIES[name].refused]


@pytest.fixture(scope="module", params=TRIED)
def model(request, make_checkpoint, make_translator):
    if request.param == "t5":
        return load_model(make_translator(), dtype="float32")
    return load_model(make_checkpoint(**(GPT2 if request.param == "gpt2" else {})), dtype="float32")


@pytest.mark.parametrize("count", [2, 3, 7])
def test_scores_have_the_bits_of_one_process(model, count):
    alone = activation_scores(model, IDS_ST)
    first, *others = by_processes(count, lambda share: activation_scores(model, IDS_ST, share=share))
    assert first.keys() == alone.keys()
    for name, values in alone.items():
        np.testing.assert_array_equal(first[name], values, err_msg=name)
    assert others == [{}] * (count - 1)


@pytest.mark.parametrize(("model", "search"), ORDERS, indirect=["model"])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_all_find_the_order_of_one_process(model, search, count):
    assert by_processes(count, lambda share: search(model, IDS_ST, share)) == [search(model, IDS_ST)] * count


@pytest.mark.parametrize("search", [removal_order, merge_order])
def test_of_equal_layers_the_earlier_one_goes_first_in_any_number_of_processes(make_checkpoint, search):
    model = load_model(make_checkpoint(), dtype="float32")
    with torch.no_grad():  # every layer does nothing: all are equal
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
    alone = search(model, IDS_ST)
    assert alone == sorted(alone)
    assert by_processes(3, lambda share: search(model, IDS_ST, share)) == [alone] * 3


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Writes what grows each time."""
    monkeypatch.setattr("architectures.kept.EVERY_S", 0.0)
    return lambda: Kept(tmp_path / "parts", {"model": "this"})


def lost_after(passes, module, name, monkeypatch):
    """Whoever calls a function of a module for the so-many-th time is killed; the list of calls of all."""
    function, calls = getattr(module, name), []

    def counted(*words, **named):
        calls.append(words)
        if len(calls) == passes:
            raise MemoryError("killed")
        return function(*words, **named)

    monkeypatch.setattr(module, name, counted)
    return calls


@pytest.mark.parametrize("again", [1, 2, 3])
def test_a_lost_process_costs_the_scores_the_batches_that_were_not_added_up(model, kept, again, monkeypatch):
    """Five batches, of which four passes were made; another number of processes goes on behind the sums so far."""
    alone = activation_scores(model, IDS_ST)
    calls = lost_after(5, scoring, "read_text", monkeypatch)
    with pytest.raises(MemoryError):
        by_processes(2, lambda share: activation_scores(model, IDS_ST, share=share, kept=kept()))
    calls.clear()
    calls += [None] * 5  # nobody is killed any more
    first, *_ = of(again, lambda share: activation_scores(model, IDS_ST, share=share, kept=kept()))
    assert 1 <= len(calls) - 5 < 5
    for name, values in alone.items():
        np.testing.assert_array_equal(first[name], values, err_msg=name)


@pytest.mark.parametrize(("model", "search"), ORDERS, indirect=["model"])
@pytest.mark.parametrize("again", [1, 2])
def test_a_lost_process_costs_a_search_the_distances_it_was_finding(model, search, kept, again, monkeypatch):
    alone = search(model, IDS_ST)
    calls = lost_after(-1, LayerSearch, "through", monkeypatch)
    by_processes(2, lambda share: search(model, IDS_ST, share))
    whole = len(calls)
    calls = lost_after(whole // 2, LayerSearch, "through", monkeypatch)
    with pytest.raises(MemoryError):
        by_processes(2, lambda share: search(model, IDS_ST, share, kept()))
    calls.clear()
    calls += [None] * whole
    assert of(again, lambda share: search(model, IDS_ST, share, kept())) == [alone] * again
    assert len(calls) - whole < 0.7 * whole


def of(count, work):
    return [work(ALONE)] if count == 1 else by_processes(count, work)

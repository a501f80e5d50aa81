"""Orders of layers are those of one process to the last bit, however many search."""

import pytest
import torch

from architectures.families import FAMILIES
from architectures.pruning.importance import merge_order, removal_order
from eval.models import load_model
from tests.sharing import by_processes

IDS_ST = torch.randint(3, 260, (5, 20), generator=torch.Generator().manual_seed(7))
GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 512}
TRIED = ("llama", "gpt2", "t5")
ORDERS = [(name, removal_order) for name in TRIED]
ORDERS += [(name, merge_order) for name in TRIED if "merge" not in FAMILIES[name].unsupported]


@pytest.fixture(scope="module", params=TRIED)
def model(request, make_checkpoint, make_translator):
    if request.param == "t5":
        return load_model(make_translator(), dtype="float32")
    return load_model(make_checkpoint(**(GPT2 if request.param == "gpt2" else {})), dtype="float32")


@pytest.mark.parametrize(("model", "search"), ORDERS, indirect=["model"])
@pytest.mark.parametrize("count", [2, 7])
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

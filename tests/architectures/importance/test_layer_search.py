"""Orders of layers: equal to what cutting every draft, and running it, would find; the model stays as it was."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from architectures.families import FAMILIES
from architectures.pruning.importance import LayerSearch, merge_order, removal_order
from architectures.pruning.plan import followers
from architectures.pruning.prune import prune_checkpoint
from eval.models import load_model
from tests.architectures.conftest import FAMILY_SETTINGS
from tests.architectures.cuts import load, plan_for
from tests.families import DECODER_ONLY
from tests.rejections import rejects
from tests.sharing import by_processes

LAYERS = 4
IDS_ST = torch.randint(3, 260, (3, 20), generator=torch.Generator().manual_seed(7))


def make_identity(model, layer):
    family = FAMILIES[model.config.model_type]
    for role in ("attention_output", "ffn_down"):
        stacked = family.layer[role].stacked
        name = f"{family.layer_prefix}{layer}.{stacked}" if stacked else f"{family.layer_module(layer, role)}.weight"
        model.get_parameter(name).data.zero_()


@pytest.fixture(scope="module", params=DECODER_ONLY)
def target(request, family_checkpoint):
    folder = family_checkpoint(request.param)
    return SimpleNamespace(folder=folder, model=load(folder))


@pytest.fixture
def llama(tiny_target):
    return load(tiny_target)


@pytest.fixture
def cut(target, tmp_path):
    """Give logits and final hidden states of the draft with some starts of layers, written and loaded."""

    def run(starts, *, merge=False):
        merged = followers(starts, LAYERS) if merge else ()
        plan = replace(plan_for(target.folder, layers=len(starts)), source_layers=starts, merged_layers=merged)
        prune_checkpoint(target.folder, plan, tmp_path / "draft")
        draft = load(tmp_path / "draft")
        with torch.no_grad():
            return draft(IDS_ST).logits.double(), draft.base_model(IDS_ST).last_hidden_state.double()

    return run


def kl(whole, changed):
    whole_logp, changed_logp = (logits.log_softmax(dim=-1) for logits in (whole, changed))
    return (whole_logp.exp() * (whole_logp - changed_logp)).sum(dim=-1).mean().item()


def without(starts, layer):
    return tuple(start for start in starts if start != layer)


def test_removal_is_what_cutting_drafts_finds(target, cut):
    whole, _ = cut(tuple(range(LAYERS)))
    kept, order = tuple(range(LAYERS)), []
    while len(kept) > 1:
        found = {layer: kl(whole, cut(without(kept, layer))[0]) for layer in kept}
        order.append(min(found, key=found.get))
        kept = without(kept, order[-1])

    assert removal_order(target.model, IDS_ST) == order


def test_merging_is_what_cutting_drafts_finds(target, cut):
    _, whole = cut(tuple(range(LAYERS)))
    starts, order = tuple(range(LAYERS)), []
    while len(starts) > 1:
        found = {}
        for start in starts[1:]:
            _, changed = cut(without(starts, start), merge=True)
            found[start] = torch.cosine_similarity(whole, changed, dim=-1).mean().item()
        order.append(max(found, key=found.get))
        starts = without(starts, order[-1])

    assert merge_order(target.model, IDS_ST) == order


def test_distances_are_those_of_the_cut_drafts(target, cut):
    with torch.inference_mode():
        search = LayerSearch(target.model, IDS_ST)
        blocks, passage = search.single_layers(), search.passages[-1]
        tails = [blocks[place + 1 :] for place in range(4)]
        removed = search.distances(passage, blocks, [0, 3], tails, search.kl_from)
        merged = search.distances(passage, blocks, [1], [(), [search.merged((1, 2)), blocks[3]]], search.turn_from)

    (whole, whole_hidden), (_, merged_hidden) = cut((0, 1, 2, 3)), cut((0, 1, 3), merge=True)
    kls = [kl(whole[-1], cut(without((0, 1, 2, 3), layer))[0][-1]) for layer in removed]
    turn = 1 - torch.cosine_similarity(whole_hidden[-1], merged_hidden[-1], dim=-1).mean().item()
    assert list(removed) == [0, 3]
    np.testing.assert_allclose(list(removed.values()), kls, rtol=1e-3)  # of float32 models, run in other batches
    assert merged[1] == pytest.approx(turn, rel=1e-3)


def test_the_whole_model_is_at_no_distance(target):
    with torch.inference_mode():
        search = LayerSearch(target.model, IDS_ST)
        passage = search.passages[0]
        again = search.final_norm(search.through(search.single_layers(), passage.entry, passage))

        assert torch.equal(again, passage.exit)
        assert search.kl_from(passage)(again) == 0
        assert search.turn_from(passage)(again) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("find", [removal_order, merge_order])
def test_the_model_is_left_as_it_was(target, find):
    def state(model):
        modules = [(id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
        return modules, [id(parameter) for parameter in model.parameters()], model.config.to_json_string()

    target.model.get_submodule(f"{FAMILIES[target.model.config.model_type].layer_prefix}1").train()
    before, weights = state(target.model), {name: t.clone() for name, t in target.model.state_dict().items()}

    find(target.model, IDS_ST)

    assert state(target.model) == before
    assert all(torch.equal(tensor, weights[name]) for name, tensor in target.model.state_dict().items())
    target.model.eval()


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_identity_layers_go_first_and_the_earlier_before_the_later(llama, layer):
    make_identity(llama, layer)
    make_identity(llama, 2)

    assert removal_order(llama, IDS_ST)[:2] == sorted([layer, 2])


class Table(LayerSearch):
    """Distances from a table, by sequence and candidate; notes which were asked for."""

    def __init__(self, table_SC):
        self.table_SC, self.passages, self.asked = table_SC, list(range(len(table_SC))), []

    def distances(self, passage, blocks, places, tails, distance_from):
        self.asked += [(passage, place) for place in places]
        return {place: self.table_SC[passage][place] for place in places}


@pytest.mark.parametrize("num_sequences", [1, 2, 5])
def test_the_nearest_is_the_one_with_the_least_sum(num_sequences):
    for seed in range(40):
        table_SC = np.random.default_rng(seed).exponential(size=(num_sequences, 6)).round(1)
        nearest = Table(table_SC).nearest([], [()] * 6, None)
        assert nearest == table_SC.sum(axis=0).round(6).argmin(), seed


def test_a_hopeless_candidate_is_given_up():
    search = Table([[1.0, 9.0, 2.0], [1.0, 9.0, 1.0], [1.0, 9.0, 1.0]])

    assert search.nearest([], [()] * 3, None) == 0
    assert [asked for asked in search.asked if asked[1] == 1] == [(0, 1)]
    assert (2, 2) in search.asked


def test_rounding_below_zero_gives_nothing_up():
    assert Table([[-1e-9, 1.0], [-1e-9, 1.0], [-1e-9, 1.0]]).nearest([], [()] * 2, None) == 0


def test_dropout_is_off(make_checkpoint):
    model = load(make_checkpoint(model_type="gpt2", resid_pdrop=0.9, embd_pdrop=0.9, **FAMILY_SETTINGS["gpt2"]))
    seen = []
    model.base_model.drop.register_forward_hook(lambda _, args, out: seen.append(torch.equal(args[0], out)))
    model.train()

    removal_order(model, IDS_ST)
    merge_order(model, IDS_ST)

    assert all(seen)
    assert len(seen) == 2 * len(IDS_ST)


@pytest.mark.parametrize("find", [removal_order, merge_order])
def test_a_single_layer_has_no_order(make_checkpoint, find):
    assert find(load(make_checkpoint(num_hidden_layers=1)), IDS_ST) == []


@pytest.mark.parametrize("find", [removal_order, merge_order])
def test_a_target_that_overflows_is_refused(llama, find):
    llama.model.layers[2].mlp.down_proj.weight.data[0, 0] = torch.inf

    with rejects("torch.float32"):
        find(llama, IDS_ST)


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

"""Orders of layers: equal to what cutting every draft, and running it, would find; the model stays as it was."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.importance import layer_search
from architectures.importance.layer_search import LayerSearch, merge_order, merged_weights, removal_order
from architectures.pruning.plan import PruningPlan
from architectures.pruning.prune import prune_checkpoint
from architectures.pruning.selection import followers, plan_pruning, without_removed
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config

VARIANTS = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "mistral": {"tie_word_embeddings": False, "sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": {"head_dim": 32, "attention_bias": True},
    "gemma2": {"sliding_window": 8, "final_logit_softcapping": 2.0},
    "gemma3_text": {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 2},
    "phi3": {"tie_word_embeddings": False},
    "smollm3": {"no_rope_layers": [1, 0, 0, 1]},
    "olmo2": {},
    "granite": {"residual_multiplier": 0.5, "logits_scaling": 3.0},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "gpt_neox": {},
    "bloom": {"n_layer": 4},
    "gpt2": {"n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 512},
    "gpt_bigcode": {"n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 512},
}
LAYERS = 4
IDS_ST = torch.randint(3, 260, (3, 20), generator=torch.Generator().manual_seed(7))


def perturb_vectors(folder):
    """Fresh biases are 0 and norms 1, the same in every layer: give each its own values."""
    generator = torch.Generator().manual_seed(5)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            tensors[name] = tensor + 0.3 * torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def layer_of(model, layer):
    return model.get_submodule(f"{FAMILIES[model.config.model_type].layer_prefix}{layer}")


def make_identity(model, layer):
    for role in ("attention_output", "ffn_down"):
        model.get_submodule(FAMILIES[model.config.model_type].layer_module(layer, role)).weight.data.zero_()


@pytest.fixture(scope="module", params=VARIANTS)
def target(request, make_checkpoint):
    folder = perturb_vectors(make_checkpoint(model_type=request.param, **VARIANTS[request.param]))
    return SimpleNamespace(folder=folder, model=load(folder))


@pytest.fixture
def llama(tiny_target):
    return load(tiny_target)


@pytest.fixture
def cut(target, tmp_path):
    """Give logits and final hidden states of the draft with some starts of layers, written and loaded."""

    def run(starts, *, merge=False):
        source = Shape.from_config(read_config(target.folder))
        plan = vars(plan_pruning(source, ArchitectureConfig(layers=len(starts), method="first_last")))
        merged = followers(starts, LAYERS) if merge else ()
        prune_checkpoint(
            target.folder,
            PruningPlan(**{**plan, "source_layers": starts, "merged_layers": merged}),
            tmp_path / "draft",
        )
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


@pytest.mark.parametrize("row", range(3))
def test_distances_are_those_of_the_cut_drafts(target, cut, row):
    with torch.inference_mode():
        search = LayerSearch(target.model, IDS_ST)
        blocks, passage = search.single_layers(), search.passages[row]
        removed = search.distances(passage, blocks, [0, 2, 3], lambda place: blocks[place + 1 :], search.kl_from)
        merged = search.distances(passage, blocks, [1], lambda _: [search.merged((1, 2)), blocks[3]], search.turn_from)

    (whole, whole_hidden), (_, merged_hidden) = cut((0, 1, 2, 3)), cut((0, 1, 3), merge=True)
    kls = [kl(whole[row], cut(without((0, 1, 2, 3), layer))[0][row]) for layer in removed]
    turn = 1 - torch.cosine_similarity(whole_hidden[row], merged_hidden[row], dim=-1).mean().item()
    assert list(removed) == [0, 2, 3]
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


def test_orders_give_every_depth(target):
    removed, merged = removal_order(target.model, IDS_ST), merge_order(target.model, IDS_ST)

    assert len(removed) == len(set(removed)) == LAYERS - 1
    assert set(removed) < set(range(LAYERS))
    assert sorted(merged) == [1, 2, 3]  # the first layer leads the first group at every depth
    for num_layers in range(1, LAYERS + 1):
        assert without_removed(merged, LAYERS, num_layers)[0] == 0
        assert len(without_removed(removed, LAYERS, num_layers)) == num_layers


@pytest.mark.parametrize("find", [removal_order, merge_order])
def test_the_model_is_left_as_it_was(target, find):
    def state(model):
        modules = [(id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
        return modules, [id(parameter) for parameter in model.parameters()], model.config.to_json_string()

    layer_of(target.model, 1).train()
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


def test_merging_into_an_identity_layer_changes_nothing(llama):
    """theta_1 + (theta_2 - theta_1) is theta_2: a pair runs as its second layer."""
    make_identity(llama, 1)

    assert merge_order(llama, IDS_ST)[0] == 2


def test_of_equal_merges_the_earlier(llama):
    for layer in range(LAYERS):
        make_identity(llama, layer)

    assert merge_order(llama, IDS_ST) == [1, 2, 3]


@pytest.mark.parametrize("group", [(1, 2), (0, 1, 2), (0, 1, 2, 3)])
def test_merged_weights_are_those_of_a_merged_draft(make_checkpoint, tmp_path, group):
    folder = make_checkpoint(seed=3, dtype="bfloat16")
    source = Shape.from_config(read_config(folder))
    starts = without_removed(list(group[1:]), LAYERS, LAYERS - len(group) + 1)
    plan = vars(plan_pruning(source, ArchitectureConfig(layers=len(starts), method="first_last")))
    plan |= {"source_layers": starts, "merged_layers": followers(starts, LAYERS)}
    prune_checkpoint(folder, PruningPlan(**plan), tmp_path / "draft")

    model, draft = load(folder), load(tmp_path / "draft")
    merged = merged_weights([layer_of(model, layer) for layer in group])

    expected = dict(layer_of(draft, starts.index(group[0])).named_parameters())
    assert merged.keys() == expected.keys()
    assert all(torch.equal(merged[name], expected[name]) for name in merged)
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}


def test_log_probabilities_are_float32(make_checkpoint):
    model = load(make_checkpoint(seed=3, dtype="bfloat16"))
    with torch.inference_mode():
        search = LayerSearch(model, IDS_ST)
        found = search.log_probabilities(search.passages[0].exit)
        expected = model(IDS_ST[:1]).logits.float().log_softmax(dim=-1)

    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


def test_what_lies_before_the_change_runs_once(llama):
    runs = dict.fromkeys(range(LAYERS), 0)
    with torch.inference_mode():
        search = LayerSearch(llama, IDS_ST)
        for layer, module in enumerate(search.layers):
            module.register_forward_hook(lambda *_, layer=layer: runs.update({layer: runs[layer] + 1}))
        blocks = search.single_layers()
        search.distances(search.passages[0], blocks, range(LAYERS), lambda place: blocks[place + 1 :], search.kl_from)

    assert runs == {0: 1, 1: 2, 2: 3, 3: 3}  # each once as a prefix, but for the last; and in each tail it is part of


def test_each_pair_is_merged_once(llama, monkeypatch):
    groups = []
    merged = LayerSearch.merged
    monkeypatch.setattr(LayerSearch, "merged", lambda self, group: groups.append(group) or merged(self, group))

    merge_order(llama, IDS_ST)

    assert groups[:3] == [(0, 1), (1, 2), (2, 3)]
    assert len(groups) == len(set(groups)) <= 6


class Table(LayerSearch):
    """Distances from a table, by sequence and candidate; notes which were asked for."""

    def __init__(self, table_SC):
        self.table_SC, self.passages, self.asked = table_SC, list(range(len(table_SC))), []

    def distances(self, passage, blocks, places, tail, distance_from):
        self.asked += [(passage, place) for place in places]
        return {place: self.table_SC[passage][place] for place in places}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("num_sequences", [1, 2, 5])
def test_the_nearest_is_the_one_with_the_least_sum(seed, num_sequences):
    table_SC = np.random.default_rng(seed).exponential(size=(num_sequences, 6)).round(1)

    assert Table(table_SC).nearest([], 6, None, None) == table_SC.sum(axis=0).round(6).argmin()


def test_a_hopeless_candidate_is_given_up():
    search = Table([[1.0, 9.0, 2.0], [1.0, 9.0, 1.0], [1.0, 9.0, 1.0]])

    assert search.nearest([], 3, None, None) == 0
    assert [asked for asked in search.asked if asked[1] == 1] == [(0, 1)]
    assert (2, 2) in search.asked


def test_rounding_below_zero_gives_nothing_up():
    assert Table([[-1e-9, 1.0], [-1e-9, 1.0], [-1e-9, 1.0]]).nearest([], 2, None, None) == 0


def test_dropout_is_off(make_checkpoint):
    model = load(make_checkpoint(model_type="gpt2", resid_pdrop=0.9, embd_pdrop=0.9, **VARIANTS["gpt2"]))
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

    with pytest.raises(UserError, match=r"overflows in torch\.float32 .* Set target\.dtype to bfloat16 or float32"):
        find(llama, IDS_ST)


@pytest.mark.parametrize("find", [removal_order, merge_order])
def test_progress_counts_steps(llama, find, monkeypatch):
    seen = []
    monkeypatch.setattr(layer_search, "track", lambda items, **options: seen.append(options["total"]) or items)

    find(llama, IDS_ST)

    assert seen == [LAYERS - 1]

"""Gates and their constraints: counted as they are drawn, the same everywhere, and able to reach a single layer."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from architectures.families import FAMILIES
from architectures.pruning.masks import (
    Axis,
    Gates,
    Masks,
    ascending,
    cut_axes,
    fold,
    masked,
    middle,
    open_probability,
    plan_from_masks,
)
from architectures.pruning.prune import prune_checkpoint, tensor_locations
from architectures.requested_shape import ArchitectureConfig, MasksConfig, masked_shape
from architectures.shapes import Shape
from tests.architectures.cuts import IDS, load, logits, shape_of
from tests.families import DECODER_ONLY
from tests.rejections import rejects

SOURCE = Shape(layers=6, hidden=64, intermediate=128, heads=8, kv_heads=4, head_dim=16, vocab=264)
DRAFT = replace(SOURCE, layers=2, hidden=48, intermediate=32, heads=2, kv_heads=2)
DEEP = replace(SOURCE, layers=32)
LEARNING_RATE, WARMUP = MasksConfig().mask_lr, 0.5


def scattered(source: Shape = SOURCE, draft: Shape = DRAFT) -> Masks:
    """Masks whose log-alphas lie anywhere between closed and open."""
    masks, generator = Masks(source, draft, seed=3), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for values in masks.log_alpha.values():
            values.copy_(4 * torch.randn(values.shape, generator=generator))
    return masks


def optimised(masks: Masks, num_steps: int, loss=None) -> list[float]:
    """Minimise loss and constraints as training does; the expected layers after each step."""
    optimizer = torch.optim.AdamW(masks.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    layers = []
    for step in range(num_steps):
        total = masks.lagrangian(min(1.0, step / (WARMUP * num_steps)))
        if loss is not None:
            total = total + loss(masks.sampled(step))
        optimizer.zero_grad()
        total.backward()
        for group in optimizer.param_groups:  # to a tenth, as in training
            group["lr"] = LEARNING_RATE * (
                0.1 + 0.45 * (1 + torch.cos(torch.tensor(3.14159 * step / num_steps)).item())
            )
        optimizer.step()
        masks.limit()
        layers.append(float(masks.expected_sizes()["layers"]))
    return layers


def test_only_what_the_draft_cuts_has_gates():
    assert {name: (axis.size, axis.kept) for name, axis in cut_axes(SOURCE, DRAFT).items()} == {
        "layers": ((6,), 2),
        "groups": ((6, 4), 2),
        "heads": ((6, 4, 2), 1),
        "neurons": ((6, 128), 32),
        "channels": ((64,), 48),
    }
    assert list(cut_axes(SOURCE, replace(SOURCE, heads=4, kv_heads=4))) == ["heads"]
    assert list(cut_axes(SOURCE, replace(SOURCE, heads=4, kv_heads=2))) == ["groups"]
    with rejects("layers=6", error=ValueError):
        Masks(SOURCE, SOURCE, seed=0)


def test_expected_sizes_are_the_mean_of_sampled_masks():
    masks = scattered()
    counts: dict[str, list[Tensor]] = {"layers": [], "neurons": [], "channels": []}
    for step in range(2000):
        gates = masks.sampled(step)
        assert all(((each >= 0) & (each <= 1)).all() for each in (gates.layers_L, gates.neurons_LF, gates.channels_H))
        counts["layers"].append((gates.layers_L > 0).sum())
        counts["neurons"].append((gates.neurons_LF > 0).sum(dim=-1).float().mean())
        counts["channels"].append((gates.channels_H > 0).sum())
    for name, expected in masks.expected_sizes().items():
        if name in counts:
            drawn = torch.stack(counts[name]).double()
            assert float(expected) == pytest.approx(float(drawn.mean()), abs=5 * float(drawn.std()) / 2000**0.5)


def test_gates_depend_on_seed_and_step_and_on_nothing_else():
    here, there = scattered(), scattered()
    torch.manual_seed(99)
    one = here.sampled(7)
    torch.rand(5)
    assert torch.equal(one.neurons_LF, there.sampled(7).neurons_LF)
    assert not torch.equal(one.neurons_LF, here.sampled(8).neurons_LF)
    there.seed = 4
    assert not torch.equal(one.neurons_LF, there.sampled(7).neurons_LF)


def test_the_gap_counts_gates_or_32nds_and_its_target_moves_linearly():
    masks = scattered()
    layers = float(open_probability(masks.log_alpha["layers"]).sum())
    channels = float(open_probability(masks.log_alpha["channels"]).sum())
    for progress, target, target_channels in ((0.0, 6, 64), (0.5, 4, 56), (1.0, 2, 48)):
        gaps = masks.gaps(progress)
        assert float(gaps["layers"]) == pytest.approx(layers - target, abs=1e-5)
        assert float(gaps["channels"]) == pytest.approx((channels - target_channels) / 2, abs=1e-5)


def test_the_lagrangian_is_the_sum_over_constraints():
    masks = scattered()
    generator, expected = torch.Generator().manual_seed(8), 0.0
    with torch.no_grad():
        for name, values in masks.multipliers.items():
            values.copy_(torch.rand(values.shape, generator=generator))
            gap = masks.gaps(0.7)[name]
            expected += float((values[0] * gap + values[1] * gap.square()).sum())
    assert masks.multipliers["neurons"].shape == (2, 6)
    assert float(masks.lagrangian(0.7)) == pytest.approx(expected, rel=1e-6)


def test_multipliers_climb_while_gates_descend():
    masks = scattered()
    masks.lagrangian(1.0).backward()
    for name, gap in masks.gaps(1.0).items():
        torch.testing.assert_close(masks.multipliers[name].grad[0], -gap.detach())
        torch.testing.assert_close(masks.multipliers[name].grad[1], -gap.detach().square())
    value = torch.tensor(3.0, requires_grad=True)
    assert ascending(value).item() == 3.0


@pytest.mark.parametrize("kept", [1, 3, 5])
def test_constraints_alone_reach_any_depth(kept):
    layers = optimised(Masks(DEEP, replace(DEEP, layers=kept), seed=0), 400)
    assert layers[0] == pytest.approx(32, rel=0.02)
    assert layers[-1] == pytest.approx(kept, abs=0.05)


@pytest.mark.parametrize("kept", [1, 5])
def test_with_a_loss_the_useful_layers_are_open_and_the_others_closed(kept):
    useful = torch.randperm(32, generator=torch.Generator().manual_seed(6))[:kept]
    worth_L = torch.full((32,), 0.1).index_fill_(0, useful, 3.0)
    masks = Masks(DEEP, replace(DEEP, layers=kept), seed=0)
    layers = optimised(masks, 400, lambda gates: -(worth_L * gates.layers_L).sum())
    chance_L = open_probability(masks.log_alpha["layers"]).detach()
    assert set(useful.tolist()) == set(masks.kept("layers").nonzero()[:, 0].tolist())
    assert chance_L[useful].min() > 0.95
    assert layers[-1] == pytest.approx(kept, abs=0.1)


@pytest.mark.parametrize("kept", [1, 5, 24])
def test_a_decided_mask_counts_as_its_kept_gates(kept):
    masks = Masks(DEEP, replace(DEEP, layers=kept), seed=0)
    low, high = masks.axes["layers"].limits
    with torch.no_grad():
        masks.log_alpha["layers"].fill_(-1e9)[:kept] = 1e9
    masks.limit()
    assert float(masks.log_alpha["layers"].min()) == pytest.approx(low)
    assert float(masks.log_alpha["layers"].max()) == pytest.approx(high)
    assert float(masks.expected_sizes()["layers"].detach()) == pytest.approx(kept, rel=0.01)
    assert float(open_probability(torch.tensor(high))) >= 1 - 1.001e-4


@pytest.mark.parametrize(("size", "kept"), [(32, 1), (11008, 1), (11008, 64), (11008, 5504)])
def test_closed_gates_count_together_as_a_hundredth_of_the_kept_ones_at_most(size, kept):
    low, _ = Axis((size,), kept).limits
    closed = float(open_probability(torch.tensor(low, dtype=torch.float64))) * (size - kept)
    assert closed <= 0.01 * kept * (1 + 1e-6)


def test_the_plan_keeps_the_largest_and_has_the_drafts_shape():
    masks = scattered()
    plan = plan_from_masks(masks, target="abc")
    assert (plan.draft, plan.method, plan.target) == (DRAFT, "learned_masks", "abc")
    assert plan.source_layers == tuple(sorted(masks.log_alpha["layers"].topk(2).indices.tolist()))
    assert plan.channels == tuple(sorted(masks.log_alpha["channels"].topk(48).indices.tolist()))
    assert plan.neurons is not None
    for place, layer in enumerate(plan.source_layers):
        assert plan.neurons[place] == tuple(sorted(masks.log_alpha["neurons"][layer].topk(32).indices.tolist()))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 4), (2, 2), (3, 3)])
def test_every_kept_group_keeps_the_same_number_of_heads(heads, kv_heads):
    draft = replace(DRAFT, heads=heads, kv_heads=kv_heads)
    plan = plan_from_masks(scattered(draft=draft))
    assert plan.heads is not None
    for layer, kept in enumerate(plan.heads):
        groups = [head // 2 for head in kept]
        assert len(kept) == heads
        assert sorted(set(groups)) == list(plan.kv_heads[layer] if plan.kv_heads else range(4))
        assert {groups.count(group) for group in groups} == {heads // kv_heads}


def test_no_kept_part_is_dead_where_training_did_not_decide():
    masks = Masks(SOURCE, DRAFT, seed=0)
    with torch.no_grad():
        masks.log_alpha["layers"].copy_(torch.tensor([-9.0, -5.0, -8.0, 1.0, -7.0, -6.0]))
    expected = [0.0, 0.5, 0.0, float(middle(torch.tensor(1.0))), 0.0, 0.0]
    assert masks.final().layers_L.tolist() == pytest.approx(expected)


def test_of_equal_gates_the_earlier_stay():
    masks = Masks(SOURCE, DRAFT, seed=0)
    with torch.no_grad():
        masks.log_alpha["channels"].fill_(1.0)
    assert plan_from_masks(masks).channels == tuple(range(48))


# A masked model, its folded weights and the draft sliced from those compute one function

WIDE = [name for name in FAMILIES if FAMILIES[name].width and "learned_masks" not in FAMILIES[name].unsupported]
CLOSE = {"rtol": 1e-3, "atol": 2e-4}  # float32: the same sums over fewer terms, in another order, through four layers
CUTS = {
    "layers": {"layers": 2},
    "groups": {"heads": 2, "kv_heads": 1},
    "heads": {"heads": 2, "kv_heads": 2},
    "groups and heads": {"heads": 1, "kv_heads": 1},
    "neurons": {"intermediate": 80},
    "channels": {"hidden": 48},
    "all": {"layers": 3, "heads": 1, "kv_heads": 1, "intermediate": 80, "hidden": 48},
}


def scattered_masks(source: Shape, draft: Shape) -> Masks:
    """Masks whose kept gates lie between 0 and 1, none of them at either."""
    masks, generator = Masks(source, draft, seed=0), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for values in masks.log_alpha.values():
            values.copy_(torch.rand(values.shape, generator=generator) * 3 - 1)
    return masks


def folded(folder: Path, gates: Gates, shape: Shape, out: Path) -> Path:
    """The checkpoint with the gates in its weights."""
    shutil.copytree(folder, out)
    tensors = load_file(out / "model.safetensors")
    for name, place in tensor_locations(shape).items():
        if name in tensors:
            tensors[name] = fold(tensors[name], place, gates, shape)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def check_law(folder: Path, out: Path, **cut: int) -> None:
    source = shape_of(folder)
    masks = scattered_masks(source, replace(source, **cut))
    plan, gates = plan_from_masks(masks), masks.final()
    model = load(folder)
    with masked(model, gates, source):
        expected = logits(model)
    whole = folded(folder, gates, source, out / "folded")
    prune_checkpoint(whole, plan, out / "draft")
    draft = load(out / "draft")
    assert shape_of(out / "draft") == masks.draft
    torch.testing.assert_close(logits(load(whole)), expected, **CLOSE)
    torch.testing.assert_close(logits(draft), expected, **CLOSE)
    assert (logits(load(folder)) - expected).abs().max() > 0.05


@pytest.mark.parametrize(
    ("family", "cut"),
    [
        *((family, "all") for family in WIDE),
        *((family, cut) for family in ("llama", "gemma2") for cut in CUTS if cut != "all"),
        *(("olmo2", cut) for cut in ("layers", "neurons", "channels")),
    ],
)
def test_a_masked_model_computes_what_its_slice_does_or_is_refused(family_checkpoint, tmp_path, family, cut):
    if FAMILIES[family].norms_over_heads and "heads" in CUTS[cut]:
        shape, config = shape_of(family_checkpoint(family)), ArchitectureConfig(**CUTS[cut])
        with rejects("architecture.method=learned_masks", family):
            masked_shape(shape, config)
        return
    check_law(family_checkpoint(family), tmp_path, **CUTS[cut])


@pytest.mark.parametrize("family", [name for name, family in DECODER_ONLY.items() if not family.width])
def test_layers_of_older_families_can_be_masked_too(family_checkpoint, tmp_path, family):
    check_law(family_checkpoint(family), tmp_path, layers=2)


def test_the_model_is_itself_again_afterwards(family_checkpoint):
    folder = family_checkpoint("llama")
    model, source = load(folder), shape_of(folder)
    before = logits(model)
    with pytest.raises(RuntimeError), masked(model, scattered_masks(source, replace(source, layers=2)).final(), source):
        raise RuntimeError
    assert torch.equal(logits(model), before)


def test_open_gates_change_no_bit(family_checkpoint):
    folder = family_checkpoint("gemma3_text")
    model, source = load(folder), shape_of(folder)
    gates = Gates(torch.ones(4), torch.ones(4, 4), torch.ones(4, 128), torch.ones(64))
    before = logits(model)
    with masked(model, gates, source):
        assert torch.equal(logits(model), before)


@pytest.mark.parametrize("family", WIDE)
def test_gradients_reach_every_gate(family_checkpoint, family):
    folder = family_checkpoint(family)
    model, source = load(folder), shape_of(folder)
    masks = scattered_masks(source, replace(source, layers=3, heads=1, kv_heads=1, intermediate=80, hidden=48))
    with masked(model, masks.expected(), source):
        model(IDS, use_cache=False).logits.square().mean().backward()
    for name, values in masks.log_alpha.items():
        assert values.grad is not None
        assert (values.grad != 0).double().mean() > 0.95, name

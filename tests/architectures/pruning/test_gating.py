"""The law of learned masks: a masked model, its folded weights and the draft sliced from those compute one function."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from architectures.families import FAMILIES
from architectures.pruning.masks import Gates, Masks, fold, masked, plan_from_masks
from architectures.pruning.prune import prune_checkpoint, tensor_locations
from architectures.requested_shape import ArchitectureConfig, masked_shape
from architectures.shapes import Shape
from tests.architectures.cuts import IDS, load, logits, shape_of
from tests.families import DECODER_ONLY
from tests.rejections import rejects

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

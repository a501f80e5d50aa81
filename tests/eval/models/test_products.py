"""Rows are multiplied by another form of the same product, on processors that are slow at the usual one."""

import copy
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from eval import models
from eval.models import FEW_ROWS, Packed, bytes_to_pack, load_model, quicken_products, slow_type


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 9, 64])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_products_are_the_same(rows, bias, rank):
    layer, inputs = nn.Linear(24, 40, bias=bias), torch.randn(rows, 24)
    shaped = {1: inputs[0] if rows else inputs, 2: inputs, 3: inputs[None]}[rank]
    expected = layer(shaped)
    quicken_products(layer)
    with torch.inference_mode():
        found = layer(shaped)
    assert found.shape == expected.shape
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "packs"), [(1, True), (2, True), (FEW_ROWS, True), (FEW_ROWS + 1, False)])
def test_few_rows_read_packed_weights_in_inference_alone(monkeypatch, rows, packs):
    layer, asked, made = nn.Linear(8, 8), [], Packed.of
    quicken_products(layer)
    monkeypatch.setattr(Packed, "of", lambda self, weight: asked.append(1) or made(self, weight))
    layer(torch.randn(rows, 8)).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        layer(torch.randn(rows, 8))
    assert not asked
    with torch.inference_mode():
        layer(torch.randn(rows, 8))
    assert bool(asked) is packs


def test_a_trained_model_reads_its_weights_of_the_moment(monkeypatch, tiny_target):
    """A fused optimiser changes weights behind autograd's version counter, by which packed copies know of changes."""
    monkeypatch.setattr("eval.models.slow_type", lambda: torch.float32)
    model = load_model(tiny_target, dtype="float32", device="cpu", trained=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    ids = torch.tensor([[3, 4, 5]])
    with torch.inference_mode():
        before = model(ids).logits
    model(ids).logits.sum().backward()
    optimizer.step()
    with torch.inference_mode():
        after = model(ids).logits
    with torch.no_grad():
        torch.testing.assert_close(after, model(ids).logits)
    assert not torch.allclose(after, before)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads Linux's count of resident pages")
@pytest.mark.usefixtures("_empty_heap")
def test_what_packing_will_take_is_what_it_takes():
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 2048, bias=False))
    assert bytes_to_pack(model) == 0
    quicken_products(model)
    asked = bytes_to_pack(model)
    assert asked == (4096 + 2048) * 4096 * 4
    before = resident_bytes()
    with torch.inference_mode():
        model(torch.ones(1, 4096))
    assert resident_bytes() - before == pytest.approx(asked, rel=0.1)
    assert bytes_to_pack(model) == 0


def test_a_model_whose_second_copy_might_not_fit_has_none(monkeypatch):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, bias=False))
    for most, packs in ((2 * 8 * 8 * 4, True), (2 * 8 * 8 * 4 - 1, False)):
        monkeypatch.setattr(models, "MOST_PACKED_BYTES", most)
        monkeypatch.setattr(Packed, "of", lambda self, weight: pytest.fail("packed"))
        quicken_products(model)
        if packs:
            with pytest.raises(pytest.fail.Exception), torch.inference_mode():
                model(torch.ones(1, 8))
        else:
            with torch.inference_mode():
                assert model(torch.ones(1, 8)).shape == (1, 8)


def in_place(layer):
    with torch.no_grad():
        layer.weight.mul_(2)


def another(layer):
    layer.weight = nn.Parameter(3 * layer.weight.detach())


def other_data(layer):
    layer.weight.data = 4 * layer.weight.data


@pytest.mark.parametrize("change", [in_place, another, other_data])
def test_weights_that_have_changed_are_packed_again(change):
    layer, inputs = nn.Linear(24, 40), torch.randn(2, 24)
    quicken_products(layer)
    with torch.inference_mode():
        before = layer(inputs)
    change(layer)
    with torch.inference_mode():
        found = layer(inputs)
        again = layer(inputs)
    expected = nn.functional.linear(inputs, layer.weight, layer.bias)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(found, again)
    assert not torch.allclose(found, before)


def test_a_copy_multiplies_by_its_own_weights():
    layer = nn.Linear(8, 8)
    quicken_products(layer)
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied.weight.zero_()
        copied.bias.zero_()
    with torch.inference_mode():
        for rows in (1, 2):
            assert not copied(torch.ones(rows, 8)).any()
            assert layer(torch.ones(rows, 8)).any()
    assert copied.state_dict().keys() == nn.Linear(8, 8).state_dict().keys()


@pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="oneDNN packs bfloat16 with AVX-512 alone"
)
@pytest.mark.parametrize("rows", [1, 3, FEW_ROWS, FEW_ROWS + 1])
def test_products_in_bfloat16_are_the_same_up_to_its_rounding(rows):
    layer, inputs = nn.Linear(24, 40).bfloat16(), torch.randn(rows, 24).bfloat16()
    exact = layer.weight.float() @ inputs.float().T
    quicken_products(layer, torch.bfloat16)
    with torch.inference_mode():
        found = layer(inputs)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact.T + layer.bias.float(), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize(
    ("capability", "gains", "slow"),
    [
        ("AVX2", False, torch.float32),
        ("AVX512", False, None),
        ("AVX512", True, torch.bfloat16),
        ("DEFAULT", False, None),
    ],
)
def test_loaded_models_are_quickened_where_it_helps(monkeypatch, tiny_target, capability, gains, slow):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(models, "few_rows_gain_only", lambda: gains)
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(library, "is_available", lambda: True)
    assert slow_type() is slow
    for dtype in ("float32", "bfloat16"):
        model = load_model(tiny_target, dtype=dtype, device="cpu")
        assert any("forward" in module.__dict__ for module in model.modules()) is (model.dtype == slow)

"""Rows are multiplied by another form of the same product, on processors that are slow at the usual one."""

import copy

import pytest
import torch
from torch import nn

from eval import products
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.decoding.texts import Limits
from eval.models import load_model
from eval.products import TURNED_ROWS, products_are_slow, quicken_products


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


FEWEST, MOST = TURNED_ROWS


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(1, "onednn"), (FEWEST, "turned"), (MOST, "turned"), (MOST + 1, "onednn"), (48, "onednn")],
)
def test_the_form_follows_from_the_rows_and_is_the_usual_one_outside_inference(monkeypatch, rows, expected):
    layer, asked = nn.Linear(8, 8), []
    quicken_products(layer)
    for name in ("turned", "onednn"):
        product = getattr(products, f"{name}_product")
        monkeypatch.setattr(
            products, f"{name}_product", lambda *given, n=name, made=product: asked.append(n) or made(*given)
        )
    layer(torch.randn(rows, 8)).sum().backward()
    assert layer.weight.grad is not None
    assert not asked
    with torch.inference_mode():
        layer(torch.randn(rows, 8))
    assert asked == [expected]


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


def test_other_number_types_are_left_alone():
    layer = nn.Linear(8, 8).bfloat16()
    quicken_products(layer)
    assert "forward" not in layer.__dict__


@pytest.mark.parametrize(("capability", "expected"), [("AVX2", True), ("AVX512", False), ("DEFAULT", False)])
def test_loaded_models_are_quickened_where_it_helps(monkeypatch, tiny_target, capability, expected):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(library, "is_available", lambda: True)
    assert products_are_slow() is expected
    model = load_model(tiny_target, dtype="float32", device="cpu")
    assert any("forward" in module.__dict__ for module in model.modules()) is expected


def test_texts_and_rounds_are_those_without(tiny_target):
    folder, prompts, limits = tiny_target, [[5, 9, 3], [7, 2]], Limits(24)
    usual, quick = (load_model(folder, dtype="float32", device="cpu") for _ in range(2))
    for module in usual.modules():
        module.__dict__.pop("forward", None)
    quicken_products(quick)
    texts = [plain_decode(model, [prompt], limits=limits) for model in (usual, quick) for prompt in prompts]
    assert [text[0].token_ids for text in texts[:2]] == [text[0].token_ids for text in texts[2:]]
    for prompt, [plain] in zip(prompts, texts, strict=False):
        [drafted] = speculative_decode(quick, quick, [prompt], limits=limits)
        assert drafted.token_ids == plain.token_ids
        assert all(one.accepted >= one.proposed - 1 for one in drafted.rounds)

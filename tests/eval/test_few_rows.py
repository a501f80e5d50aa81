"""Few rows are multiplied by another form of the same product, on processors that are slow at the usual one."""

import copy

import pytest
import torch
from torch import nn

from eval import few_rows
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.decoding.texts import Limits
from eval.few_rows import MOST_ROWS, few_rows_are_slow, quicken_few_rows
from eval.models import load_model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 3))
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_products_are_the_same(rows, bias, rank):
    layer, inputs = nn.Linear(24, 40, bias=bias), torch.randn(rows, 24)
    shaped = {1: inputs[0], 2: inputs, 3: inputs[None]}[rank]
    expected = layer(shaped)
    quicken_few_rows(layer)
    with torch.inference_mode():
        found = layer(shaped)
    assert found.shape == expected.shape
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "expected"), [(1, 0), (2, 1), (MOST_ROWS, 1), (MOST_ROWS + 1, 0)])
def test_few_rows_alone_take_the_other_form_and_only_in_inference(monkeypatch, rows, expected):
    layer, asked = nn.Linear(8, 8), []
    quicken_few_rows(layer)
    product = few_rows.product_of_few_rows
    monkeypatch.setattr(few_rows, "product_of_few_rows", lambda *given: asked.append(0) or product(*given))
    layer(torch.randn(rows, 8))
    assert not asked
    with torch.inference_mode():
        layer(torch.randn(rows, 8))
    assert len(asked) == expected


def test_a_copy_multiplies_by_its_own_weights():
    layer = nn.Linear(8, 8)
    quicken_few_rows(layer)
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied.weight.zero_()
        copied.bias.zero_()
    with torch.inference_mode():
        assert not copied(torch.ones(2, 8)).any()
        assert layer(torch.ones(2, 8)).any()
    assert copied.state_dict().keys() == nn.Linear(8, 8).state_dict().keys()


def test_other_number_types_are_left_alone():
    layer = nn.Linear(8, 8).bfloat16()
    quicken_few_rows(layer)
    assert "forward" not in layer.__dict__


@pytest.mark.parametrize(("capability", "expected"), [("AVX2", True), ("AVX512", False), ("DEFAULT", False)])
def test_loaded_models_are_quickened_where_it_helps(monkeypatch, tiny_target, capability, expected):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert few_rows_are_slow() is expected
    model = load_model(tiny_target, dtype="float32", device="cpu")
    assert any("forward" in module.__dict__ for module in model.modules()) is expected


def test_texts_and_rounds_are_those_without(tiny_target):
    folder, prompts, limits = tiny_target, [[5, 9, 3], [7, 2]], Limits(24)
    usual, quick = (load_model(folder, dtype="float32", device="cpu") for _ in range(2))
    for module in usual.modules():
        module.__dict__.pop("forward", None)
    quicken_few_rows(quick)
    texts = [plain_decode(model, [prompt], limits=limits) for model in (usual, quick) for prompt in prompts]
    assert [text[0].token_ids for text in texts[:2]] == [text[0].token_ids for text in texts[2:]]
    for prompt, [plain] in zip(prompts, texts, strict=False):
        [drafted] = speculative_decode(quick, quick, [prompt], limits=limits)
        assert drafted.token_ids == plain.token_ids
        assert all(one.accepted >= one.proposed - 1 for one in drafted.rounds)

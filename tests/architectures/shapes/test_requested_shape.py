"""The draft's shape: named, written out or relative, and every refusal."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from architectures.requested_shape import ArchitectureConfig, draft_shape
from architectures.shapes import NAMED_SHAPES, Shape
from tests.rejections import rejects

LLAMA_7B = NAMED_SHAPES["llama-7b"].shape
SMOLLM2 = Shape(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocab=49152, tied=True)
LLAMA_3 = Shape(layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8, head_dim=128, vocab=128256)

QWEN3_MOE = replace(LLAMA_3, family="qwen3_moe", intermediate=768, experts=16, active_experts=4)


def cut(source: Shape, **architecture) -> Shape:
    return draft_shape(source, ArchitectureConfig(**architecture))


def test_a_size_left_out_is_the_targets():
    assert cut(SMOLLM2, layers=6) == replace(SMOLLM2, layers=6)
    assert cut(SMOLLM2, intermediate=700) == replace(SMOLLM2, intermediate=700)
    assert cut(QWEN3_MOE, layers=6) == replace(QWEN3_MOE, layers=6)
    assert cut(QWEN3_MOE, experts="0.25x") == replace(QWEN3_MOE, experts=4)


def test_shares_of_the_target():
    assert cut(SMOLLM2, layers="0.2x", hidden="0.5x", intermediate="0.5x", heads="1x") == replace(
        SMOLLM2, layers=6, hidden=288, intermediate=768
    )
    assert cut(SMOLLM2, layers="0.01x").layers == 1
    assert cut(SMOLLM2, intermediate="0.3x").intermediate == 448  # 460.8, down to whole blocks of 32


@pytest.mark.parametrize("name", [name for name in NAMED_SHAPES if name not in ("llama-13b", "llama-65b", "wide-829m")])
def test_every_smaller_llama_shape_can_be_cut_from_llama_7b(name):
    shape = NAMED_SHAPES[name].shape
    assert cut(LLAMA_7B, shape=name) == shape
    assert cut(replace(LLAMA_7B, vocab=32016, tied=True), shape=name) == replace(shape, vocab=32016, tied=True)


def test_key_value_heads_follow_the_heads():
    assert cut(LLAMA_3, heads=16).kv_heads == 4
    assert cut(LLAMA_3, heads="0.5x", kv_heads=8).kv_heads == 8
    assert cut(LLAMA_7B, heads=20, hidden=2560).kv_heads == 20


@pytest.mark.parametrize(
    ("source", "architecture", "named"),
    [
        (SMOLLM2, {"layers": 31}, ("layers", 31, 30)),
        (SMOLLM2, {"hidden": 640, "intermediate": 2000}, ("hidden", 640, 576, "intermediate", 2000)),
        (LLAMA_3, {"shape": "wide-796m"}, ("kv_heads", 32)),
        (LLAMA_3, {"shape": "wide-829m"}, ("heads", 64)),
        (LLAMA_3, {"heads": 14}, ("architecture.heads=14", "architecture.kv_heads")),
        (SMOLLM2, {"heads": "0.5x"}, ("architecture.heads=0.5x",)),
        (SMOLLM2, {"kv_heads": 2}, ("heads", 9, 2)),
        (SMOLLM2, {"kv_heads": 1}, ("heads", 9)),
        (SMOLLM2, {"hidden": 500}, ("hidden", 500, 495)),
        (SMOLLM2, {"hidden": "0.05x"}, ("architecture.hidden=0.05x",)),
        (replace(SMOLLM2, head_dim=63), {"layers": 2}, ("head_dim", 63)),
        (SMOLLM2, {"hidden": 288, "width_method": "flap"}, ("hidden", 288, "flap")),
        (replace(SMOLLM2, family="opt", kv_heads=9), {"hidden": 288}, ("hidden", "opt")),
        (QWEN3_MOE, {"experts": 17}, ("experts", 17, 16)),
        (QWEN3_MOE, {"experts": 3}, ("architecture.experts=3", 4, "num_experts_per_tok")),
        (QWEN3_MOE, {"experts": "0.2x"}, ("architecture.experts=0.2x", 16)),
        (QWEN3_MOE, {"experts": 8, "width_method": "flap"}, ("experts", 8, 16, "flap")),
        (QWEN3_MOE, {"intermediate": 384}, ("intermediate", "qwen3_moe", "architecture.experts")),
        (SMOLLM2, {"experts": 4}, ("architecture.experts=4", "llama")),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_the_reason(source, architecture, named):
    with rejects(*named):
        cut(source, **architecture)


@pytest.mark.parametrize(
    "given",
    [
        *({"layers": value} for value in (0, -1, "0x", "0.0x", "1.5x", "x", "half", "2", True, "0.5")),
        *({"stages": stages} for stages in ([8], [8, 8], [5, 8], [8, 0])),
        {},
        {"shape": "wide-796m", "layers": 3},
        {"plan": "p", "hidden": 3},
        {"shape": "wide-796m", "plan": "p"},
        {"stages": [3, 2], "layers": 2},
        {"plan": "p.json", "method": "merge"},
        {"plan": "p.json", "width_method": "flap"},
    ],
    ids=str,
)
def test_no_size_or_more_than_one_way_to_give_them_is_refused(given):
    with pytest.raises(ValidationError):
        ArchitectureConfig(**given)


def test_stages_say_the_layers():
    assert cut(SMOLLM2, stages=[16, 8, 5]) == replace(SMOLLM2, layers=5)
    assert cut(SMOLLM2, stages=[16, 8], intermediate=768) == replace(SMOLLM2, layers=8, intermediate=768)
    assert cut(LLAMA_7B, stages=[16, 5], shape="wide-796m").layers == 5

"""What engines can do with a shape."""

from dataclasses import replace

from architectures.compatibility import quantised_formats, serving_problems, tensor_parallel_degrees
from architectures.shapes import NAMED_SHAPES, Shape

WIDE = NAMED_SHAPES["wide-796m"].shape
SMOLLM2 = Shape(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocab=49152, tied=True)


def test_every_named_shape_can_be_served():
    assert all(serving_problems(named.shape) == [] for named in NAMED_SHAPES.values())


def test_degrees_divide_heads_neurons_and_key_value_heads_or_copy_these():
    assert tensor_parallel_degrees(WIDE) == [1, 2, 4, 8, 16, 32]
    assert tensor_parallel_degrees(SMOLLM2) == [1, 3]  # 9 does not divide 1536
    assert tensor_parallel_degrees(replace(SMOLLM2, intermediate=1152)) == [1, 3, 9]
    assert tensor_parallel_degrees(replace(WIDE, kv_heads=8)) == [1, 2, 4, 8, 16, 32]
    assert tensor_parallel_degrees(replace(WIDE, heads=24, kv_heads=4, intermediate=24)) == [1, 2, 4, 8, 12, 24]


def test_block_formats_need_whole_rows():
    assert quantised_formats(WIDE) == "k-quants"
    assert quantised_formats(SMOLLM2) == "q8_0, q4_0"
    assert quantised_formats(replace(WIDE, intermediate=11009)) == "none"
    assert quantised_formats(replace(WIDE, hidden=4096 + 32)) == "q8_0, q4_0"
    assert quantised_formats(replace(SMOLLM2, heads=5, head_dim=2)) == "none"

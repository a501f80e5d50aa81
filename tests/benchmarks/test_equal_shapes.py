"""Shapes of one size have that size, the target's heads, and proportions as near to the target's as they can be."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from architectures.compatibility import serving_problems
from architectures.requested_shape import BLOCK
from architectures.shapes import NAMED_SHAPES
from benchmarks.equal_shapes import equal_shape
from tests.rejections import rejects

LLAMA = NAMED_SHAPES["llama-7b"].shape
GROUPED = replace(LLAMA, kv_heads=8, tied=True)


def neurons(shape):
    """Parameters of BLOCK more neurons in every layer."""
    return replace(shape, intermediate=shape.intermediate + BLOCK).parameters() - shape.parameters()


@settings(deadline=None, max_examples=40)
@given(
    source=st.sampled_from([LLAMA, GROUPED]),
    layers=st.integers(1, 32),
    parameters=st.integers(400_000_000, 4_000_000_000),
)
def test_the_size_is_met_within_a_block_of_neurons_and_every_engine_serves_it(source, layers, parameters):
    shape = equal_shape(source, layers=layers, parameters=parameters)
    assert abs(shape.parameters() - parameters) <= neurons(shape) / 2
    assert (shape.layers, shape.vocab, shape.tied, shape.head_dim) == (layers, source.vocab, source.tied, 128)
    assert shape.heads * shape.head_dim == shape.hidden
    assert shape.heads * source.kv_heads == shape.kv_heads * source.heads
    assert shape.intermediate % BLOCK == 0
    assert serving_problems(shape) == []


@settings(deadline=None, max_examples=40)
@given(hidden_heads=st.integers(8, 32), layers=st.integers(1, 32))
def test_a_shape_in_the_targets_proportions_is_found_again(hidden_heads, layers):
    hidden = 128 * hidden_heads
    wanted = replace(
        LLAMA, layers=layers, hidden=hidden, heads=hidden_heads, kv_heads=hidden_heads, intermediate=344 * hidden_heads
    )
    found = equal_shape(LLAMA, layers=layers, parameters=wanted.parameters())
    assert found.hidden == hidden
    assert abs(found.intermediate - wanted.intermediate) <= BLOCK / 2


def test_what_cannot_be_made():
    with rejects(33, 1, 32):
        equal_shape(LLAMA, layers=33, parameters=10**9)
    with rejects(0, 1, 32):
        equal_shape(LLAMA, layers=0, parameters=10**9)
    with rejects(32, "8.0M", 128):
        equal_shape(LLAMA, layers=32, parameters=8_000_000)
    with rejects("gpt2"):
        equal_shape(replace(LLAMA, family="gpt2"), layers=1, parameters=10**9)

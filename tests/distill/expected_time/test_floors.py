"""The least a step takes, by hand, and what drafts are worth by it; unmeasured words of headers."""

from dataclasses import replace

import pytest

from architectures.errors import UserError
from architectures.shapes.shape import NAMED_SHAPES, Shape
from architectures.targets.known_targets import KNOWN_CONFIGS
from distill.expected_time.devices import Device, find_device
from distill.expected_time.floor_words import floor_words
from distill.expected_time.floors import (
    ALPHAS,
    EAGER,
    FLOOR,
    LOOKAHEADS,
    as_fast,
    best_by_alpha,
    floor_s,
    floor_times,
    neighbours,
    quarter_head,
    wanted_head,
    ways_of,
)
from eval.acceptance.speedup import break_even_alpha

LLAMA, WIDE, ONE = (NAMED_SHAPES[name].shape for name in ("llama-7b", "wide-796m", "wide-290m"))
QWEN = Shape.from_config(KNOWN_CONFIGS["Qwen/Qwen2.5-7B-Instruct"])
QWEN_DRAFT = replace(QWEN, layers=5, intermediate=QWEN.intermediate // 2)
BYTES_S = 3350e9  # of an H100 with HBM3
LAYER = 4 * 4096**2 + 3 * 4096 * 11008  # matrices of a layer of LLaMA-7B
HEAD = 32000 * 4096
KEPT = 128 * 2 * 4096 * 2  # bytes of keys and values of a layer, 128 tokens before the step


@pytest.fixture
def h100(tmp_path):
    return find_device("nvidia-h100-80gb-hbm3", (tmp_path / "none",))


def test_a_step_reads_matrices_keys_and_values_once(h100):
    for shape, layers in ((LLAMA, 32), (WIDE, 5), (ONE, 1)):
        read = 2 * (layers * LAYER + HEAD) + layers * KEPT
        assert floor_s(h100, shape, "bfloat16", tokens=1) == pytest.approx(read / BYTES_S)
        assert floor_s(h100, shape, "bfloat16", tokens=9) == floor_s(h100, shape, "bfloat16", tokens=1)


def test_many_tokens_wait_for_products(h100):
    flops = 2 * (32 * LAYER + HEAD) + 4 * 32 * 4096 * 128
    assert floor_s(h100, LLAMA, "bfloat16", tokens=2048) == pytest.approx(2048 * flops / 989e12)
    assert floor_s(h100, LLAMA, "float32", tokens=64) == pytest.approx(64 * flops / 67e12)
    assert floor_s(h100, LLAMA, "float16", tokens=2048) == floor_s(h100, LLAMA, "bfloat16", tokens=2048)


def test_launched_kernels_cost_layers_and_never_less_than_the_floor(h100):
    """0.94 ms a layer hides all bytes of LLaMA-7B and its drafts, so that heads cost nothing and depth everything."""
    steps = floor_times(h100, LLAMA, WIDE, "bfloat16", EAGER)
    assert (steps.target_s, steps.draft_s) == (pytest.approx(0.030), pytest.approx(5 * 0.0009375))
    assert steps.cost_ratio == pytest.approx(5 / 32)
    small = floor_times(h100, LLAMA, WIDE.with_head_of(8192), "bfloat16", EAGER)
    assert small.cost_ratio == steps.cost_ratio
    fat = replace(LLAMA, layers=1, hidden=65536, heads=512, kv_heads=512)
    assert floor_s(h100, fat, "bfloat16", tokens=1, way=EAGER) == floor_s(h100, fat, "bfloat16", tokens=1) > 0.01


def test_verification_of_few_tokens_costs_a_step_where_bytes_decide(h100):
    steps = floor_times(h100, LLAMA, WIDE, "bfloat16")
    assert steps.verify_s == dict.fromkeys(LOOKAHEADS, steps.target_s)
    assert steps.draft_two_s == steps.draft_s


def test_worth_by_hand(h100):
    """Lookahead 2 at alpha 0.6 emits 1.96 tokens in 1 + 2 c steps; of one token, alpha must be the cost ratio."""
    steps = floor_times(h100, LLAMA, WIDE, "bfloat16")
    ratio = (10 * LAYER + 2 * HEAD + 5 * KEPT) / (64 * LAYER + 2 * HEAD + 32 * KEPT)
    assert steps.cost_ratio == pytest.approx(ratio)
    assert best_by_alpha(steps)[0.6] == (2, pytest.approx(1.96 / (1 + 2 * ratio)))
    assert break_even_alpha(1, steps) == pytest.approx(ratio)


def test_deeper_wider_and_wordier_drafts_must_be_right_more_often(h100):
    own = floor_times(h100, LLAMA, WIDE, "bfloat16")
    near = {name: as_fast(floor_times(h100, LLAMA, shape, "bfloat16"), own) for name, shape in near_shapes().items()}
    for alpha in ALPHAS:
        assert near["a layer less"][alpha] < alpha < near["a layer more"][alpha]
        assert near["half the neurons"][alpha] < near["8,192 ids"][alpha] < alpha


def near_shapes():
    return neighbours(WIDE, LLAMA)


def test_neighbours_differ_in_one_thing_and_can_be_cut():
    found = near_shapes()
    assert list(found) == ["a layer less", "half the neurons", "a layer more", "8,192 ids"]
    assert [shape.layers for shape in found.values()] == [4, 5, 6, 5]
    assert found["half the neurons"] == replace(WIDE, intermediate=5504)
    assert found["8,192 ids"] == WIDE.with_head_of(8192)
    assert "a layer less" not in neighbours(ONE, LLAMA)
    assert "a layer more" not in neighbours(LLAMA, LLAMA)
    narrow = neighbours(QWEN_DRAFT.with_head_of(32768), QWEN)
    assert narrow["the whole width"] == replace(QWEN, layers=5).with_head_of(32768)
    assert narrow["the whole head"] == QWEN_DRAFT
    assert "the whole head" not in neighbours(WIDE.with_head_of(9), LLAMA.with_head_of(9))
    classic = replace(WIDE, family="gpt2")
    assert not {"half the neurons", "the whole width"} & set(neighbours(classic, replace(classic, layers=12)))


def test_a_quarter_of_the_head_in_powers_of_two():
    assert [quarter_head(vocab) for vocab in (32000, 32768, 128256, 152064)] == [8192, 8192, 32768, 32768]


def test_a_head_is_plainly_too_large_where_few_could_miss_it(h100):
    """Of the draft of Qwen2.5-7B it is 45 % of a step: a fifth of it is as fast with 84 to 90 % of the acceptance."""
    assert wanted_head(h100, QWEN, QWEN_DRAFT, "bfloat16") == 32768
    assert wanted_head(h100, QWEN, QWEN_DRAFT.with_head_of(32768), "bfloat16") is None
    small, whole = (
        floor_times(h100, QWEN, shape, "bfloat16") for shape in (QWEN_DRAFT.with_head_of(32768), QWEN_DRAFT)
    )
    shares = [needed / alpha for alpha, needed in as_fast(small, whole).items() if needed]
    assert shares == pytest.approx([0.835, 0.861, 0.880, 0.899], abs=0.001)
    assert wanted_head(h100, LLAMA, WIDE, "bfloat16") is None
    assert wanted_head(h100, LLAMA, ONE, "bfloat16") is None


def test_a_measured_device_has_floors_of_its_own_bandwidth(device_file, records):
    measured = find_device(str(device_file(records["h100"])))
    steps = floor_times(measured, LLAMA, WIDE, "bfloat16")
    assert steps.target_s == pytest.approx((64 * LAYER + 2 * HEAD + 32 * KEPT) / 3000e9)


def test_a_processor_launches_nothing(device_file, records, h100):
    assert ways_of(find_device(str(device_file(records["cores"])))) == (FLOOR,)
    assert ways_of(h100) == (FLOOR, EAGER)


def test_what_nobody_knows_has_no_floor(device_file, records):
    with pytest.raises(UserError, match=r"Some Processor, 4 cores: its bandwidth, or its peak in bfloat16, is"):
        floor_s(Device("Some Processor, 4 cores"), WIDE, "bfloat16", tokens=1)
    cores = find_device(str(device_file(records["cores"])))
    with pytest.raises(UserError, match=r"its peak in float32, is not known, .* or set eval\.dtype"):
        floor_s(cores, WIDE, "float32", tokens=1)


def test_the_words_of_a_header(h100, device_file, records):
    assert floor_words(h100, LLAMA, WIDE, LLAMA, "bfloat16") == (
        "unmeasured, least times on one NVIDIA H100 80GB HBM3: a step 0.69 ms, 0.173 of the target's (0.156 where "
        "launches decide). Pays from alpha 0.17 at lookahead 1, 0.58 at 8. Best lookaheads at alpha 0.5, 0.6, 0.7, "
        "0.8: 2, 2, 3, 4, worth 1.30x, 1.46x, 1.67x, 1.99x. As fast as alpha 0.6 here: a layer less 0.56, half the "
        "neurons 0.53, a layer more 0.64, 8,192 ids 0.58 (97% of it)."
    )
    cores = find_device(str(device_file(records["cores"])))
    assert "launches" not in floor_words(cores, LLAMA, WIDE, LLAMA, "bfloat16")
    deep = NAMED_SHAPES["deep-1.3b"].shape
    assert "the whole width never" in floor_words(h100, LLAMA, deep, LLAMA, "bfloat16")
    assert "Pays from alpha none at lookahead 1" in floor_words(h100, WIDE, LLAMA, LLAMA, "bfloat16")

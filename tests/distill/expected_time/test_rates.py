"""Speeds: the nearest measurement, what is made of it, and what is assumed where there is none."""

from dataclasses import replace

import pytest

from architectures.shapes.shape import NAMED_SHAPES
from distill.expected_time.device_figures import load_figures
from distill.expected_time.devices import Device, find_device
from distill.expected_time.rates import (
    SMOLLM2_135M,
    are_captured,
    least_step_s,
    served_step_ms,
    step_s,
    steps_of_answers,
    training_flops_per_s,
)

LLAMA, WIDE, DEEP = (NAMED_SHAPES[name].shape for name in ("llama-7b", "wide-796m", "deep-1.3b"))


@pytest.fixture
def measured(device_file):
    """measured(record) -> the device of a record."""

    def load(record):
        return find_device(str(device_file(record)))

    return load


@pytest.fixture
def published(tmp_path):
    return find_device("nvidia-h100-80gb-hbm3", (tmp_path,))


def test_the_carried_target_is_smollm2():
    assert SMOLLM2_135M.parameters() == 134_515_008


@pytest.mark.parametrize(("source", "flops"), [("live", 400e12), ("cached", 350e12), ("none", 300e12)])
def test_training_is_as_fast_as_it_was_with_the_same_kind_of_teacher(source, flops, measured, records):
    rate = training_flops_per_s(measured(records["h100"]), source, "amp_bf16", WIDE)
    assert rate is not None
    assert (rate.value, rate.measured) == (flops, True)
    assert rate.words.startswith(f"measured {flops / 1e12:.0f} TFLOP/s, wide-796m with ")


def test_of_several_students_the_same_one_counts_else_the_first(measured, records):
    rows = records["h100"]["stages"]["distillation"]["rows"]
    rows += [{**rows[0], "student": "deep-1.3b", "flops_per_s": 200e12}]
    device = measured(records["h100"])
    rates = [training_flops_per_s(device, "live", "amp_bf16", shape) for shape in (DEEP, WIDE, SMOLLM2_135M)]
    assert [rate.value for rate in rates if rate] == [200e12, 400e12, 400e12]


def test_of_the_same_student_packing_counts_then_mixed_lengths(measured, records):
    rows = records["h100"]["stages"]["distillation"]["rows"]
    rows += [{**rows[0], "mixed_lengths": True, "flops_per_s": 310e12}]
    rows += [{**rows[0], "mixed_lengths": True, "packing": True, "flops_per_s": 390e12}]
    device = measured(records["h100"])
    rates = [training_flops_per_s(device, "live", "amp_bf16", WIDE, packing=packing) for packing in (False, True)]
    assert [rate.value for rate in rates if rate] == [310e12, 390e12]


def test_another_kind_of_teacher_is_said_to_stand_in(measured, records):
    del records["h100"]["stages"]["distillation"]["rows"][1]
    rate = training_flops_per_s(measured(records["h100"]), "cached", "amp_bf16", WIDE)
    assert rate is not None
    assert (rate.value, rate.measured) == (400e12, False)
    assert rate.words == "assumed as 400 TFLOP/s, wide-796m with a live teacher"


def test_another_precision_is_no_measurement_of_this_one(measured, records):
    rate = training_flops_per_s(measured(records["h100"]), "live", "fp32", WIDE)
    assert rate is not None
    assert (rate.value, rate.measured) == (0.3 * 50e12, False)
    assert rate.words == "assumed 30% of the 50 TFLOP/s measured for float32"


def test_a_published_peak_is_what_is_left(published):
    rate = training_flops_per_s(published, "live", "amp_bf16", WIDE)
    assert rate is not None
    assert (rate.value, rate.measured) == (0.3 * 989e12, False)
    assert rate.words == "assumed 30% of the 989 TFLOP/s published for bfloat16"


def test_nothing_is_made_up_of_an_unknown_device():
    nobody = Device("Some Processor, 4 cores")
    assert training_flops_per_s(nobody, "live", "amp_bf16", WIDE) is None
    assert step_s(nobody, LLAMA, "bfloat16", batch=1, context=100) is None


def test_a_step_is_the_one_measured_at_the_nearest_batch(measured, records):
    device = measured(records["h100"])
    for batch, expected in ((1, 0.024), (48, 0.028)):
        rate = step_s(device, LLAMA, "bfloat16", batch=batch, context=512)
        assert rate is not None
        assert (rate.value, rate.measured) == (pytest.approx(expected), True)


def test_steps_of_other_decoders_are_none_of_ours(measured, records):
    stages = records["h100"]["stages"]
    for name in ("steps", "answers"):
        stages[name]["rows"].reverse()  # the captured ones, and transformers' answers, come first
    device = measured(records["h100"])
    rates = [step_s(device, LLAMA, "bfloat16", batch=batch, context=512) for batch in (1, 48)]
    assert [rate.value for rate in rates if rate] == pytest.approx([0.024, 0.028])


def test_nothing_is_assumed_of_the_steps_of_a_processor(measured, records):
    assert step_s(measured(records["cores"]), LLAMA, "float32", batch=1, context=512) is None


def test_a_gpu_waits_for_launches_or_for_memory_whichever_takes_longer(measured, records):
    device = measured(records["h100"])
    half = step_s(device, replace(LLAMA, layers=16), "bfloat16", batch=48, context=512)
    assert half is not None
    assert (half.value, half.measured) == (pytest.approx(0.014), False)
    many = step_s(device, LLAMA, "bfloat16", batch=256, context=2048)
    least = least_step_s(device, LLAMA, "bfloat16", 256, 2048)
    assert many is not None
    assert least is not None
    assert many.value == pytest.approx(least / 0.6)
    assert many.value > 0.028


@pytest.mark.parametrize("context", [128, 4096])
def test_a_longer_text_costs_a_processor_what_its_bytes_take(context, measured, records):
    device = measured(records["cores"])
    rate = step_s(device, SMOLLM2_135M, "bfloat16", batch=1, context=context)
    least = least_step_s(device, SMOLLM2_135M, "bfloat16", 1, context)
    assert rate is not None
    assert least is not None
    assert (rate.value, rate.measured) == (pytest.approx(0.024 - 0.012 + least), True)


def test_another_model_takes_a_processor_as_long_as_its_bytes_say(measured, records):
    device = measured(records["cores"])
    rate, least = step_s(device, WIDE, "bfloat16", batch=1, context=128), least_step_s(device, WIDE, "bfloat16", 1, 128)
    assert rate is not None
    assert least is not None
    assert (rate.value, rate.measured) == (pytest.approx(least / 0.5), False)


def test_least_time_is_bytes_over_bandwidth_measured_before_published(measured, records, published):
    read = 2 * (LLAMA.parameters() - 32000 * 4096 - 65 * 4096) + 8 * 100 * 2 * 32 * 4096 * 2
    for device, bandwidth in ((measured(records["h100"]), 3000e9), (published, 3350e9)):
        assert least_step_s(device, LLAMA, "bfloat16", 8, 100) == pytest.approx(read / bandwidth)


def test_without_steps_of_this_number_type_launches_are_assumed(measured, records):
    rate = step_s(measured(records["h100"]), LLAMA, "float32", batch=1, context=512)
    assert rate is not None
    assert (rate.value, rate.measured) == (pytest.approx(0.030), False)
    assert rate.words == "assumed 30 ms a step, 0.94 ms a layer to launch its kernels"


def test_where_steps_were_not_told_apart_the_whole_time_is_divided(measured, records):
    stages = records["cores"]["stages"]
    del stages["steps"]
    row = stages["answers"]["rows"][0]
    row |= {"step_ms": None, "floor_share": None}
    rate = step_s(measured(records["cores"]), SMOLLM2_135M, "bfloat16", batch=48, context=40)
    assert rate is not None
    assert rate.value == pytest.approx(48 / 500)


def test_answers_of_a_gpu_take_as_many_steps_as_the_longest(published):
    assert steps_of_answers(published, 97, 48, 512) == 3 * 512
    cores = Device("Some Processor, 4 cores")
    assert steps_of_answers(cores, 96, 48, 512) == 2 * 300


def test_a_served_step_is_the_captured_one_of_this_shape(measured, records, published):
    rate = served_step_ms(measured(records["h100"]), WIDE)
    assert (rate.value, rate.measured) == (1.25, True)
    row = next(row for row in records["h100"]["stages"]["steps"]["rows"] if row["median_ms"] == 1.25)
    records["h100"]["stages"]["steps"]["rows"].insert(0, {**row, "context": 4096, "median_ms": 2.0})
    assert served_step_ms(measured(records["h100"]), WIDE).value == 1.25  # of the shortest text
    other = served_step_ms(measured(records["h100"]), DEEP)
    assert (other.value, other.measured) == (pytest.approx(24 * 0.55 + 0.131 / 3.35, rel=1e-3), False)
    assert served_step_ms(published, WIDE).value == pytest.approx(5 * 0.55 + 0.262 / 3.35, rel=1e-3)


def test_every_measured_speed_is_proportional_to_its_row(measured, records):
    before = training_flops_per_s(measured(records["h100"]), "live", "amp_bf16", WIDE)
    records["h100"]["stages"]["distillation"]["rows"][0]["flops_per_s"] *= 2
    after = training_flops_per_s(measured(records["h100"]), "live", "amp_bf16", WIDE)
    assert before is not None
    assert after is not None
    assert after.value == 2 * before.value


def test_figures_are_of_the_file_that_was_given(device_file, records):
    file = device_file(records["cores"])
    assert load_figures(file).file == file


def test_answers_take_captured_steps_where_those_were_measured(device_file, records):
    device, place = find_device(str(device_file(records["h100"]))), {"batch": 1, "context": 512}
    captured = step_s(device, LLAMA, "bfloat16", **place, captured=True)
    eager = step_s(device, LLAMA, "bfloat16", **place)
    assert captured.value == pytest.approx(6e-3)
    assert captured.measured
    assert eager.value > captured.value
    del records["h100"]["stages"]["steps"]["rows"][1]  # of the target none, of drafts there are
    other = step_s(find_device(str(device_file(records["h100"]))), LLAMA, "bfloat16", **place, captured=True)
    assert not other.measured
    records["h100"]["stages"]["steps"]["rows"] = [
        row for row in records["h100"]["stages"]["steps"]["rows"] if row.get("how") != "captured"
    ]
    none = find_device(str(device_file(records["h100"])))
    assert step_s(none, LLAMA, "bfloat16", **place, captured=True) == step_s(none, LLAMA, "bfloat16", **place)


@pytest.mark.parametrize(
    ("asked", "family", "expected"),
    [("auto", "llama", True), ("captured", "llama", True), ("eager", "llama", False), ("auto", "opt", False)],
)
def test_whose_answers_are_captured(device_file, records, asked, family, expected):
    h100, cores = (find_device(str(device_file(records[name]))) for name in ("h100", "cores"))
    shape = replace(LLAMA, family=family)
    assert are_captured(h100, shape, asked) == expected
    assert not are_captured(cores, shape, asked)

"""What is read from a trace, on traces small enough to be counted by hand; a GPU's too, which no test machine has."""

import pytest

from eval.profiling.figures import (
    RECORDED,
    Span,
    gpu_busy_share,
    memory_over_time,
    named_spans,
    own_ms,
    recorded_span,
)

WITHIN = Span(RECORDED, 1000, 2000)


def annotation(name: str, start: float, end: float, cat: str = "user_annotation"):
    return {"name": name, "cat": cat, "ts": start, "dur": end - start}


def kernel(start: float, end: float, cat: str = "kernel"):
    return {"name": "gemm", "cat": cat, "ts": start, "dur": end - start}


def memory(at: float, change: int, total: int, *, kind: int = 0, number: int = -1, reserved: int = 0):
    args = {
        "Bytes": change,
        "Total Allocated": total,
        "Total Reserved": reserved,
        "Device Type": kind,
        "Device Id": number,
    }
    return {"name": "[memory]", "cat": "cpu_instant_event", "ts": at, "args": args}


def test_the_recorded_pass_is_the_one_after_the_warm_one():
    events = [annotation("ProfilerStep#0", 0, 900), annotation(RECORDED, 1000, 2000)]
    on_gpu = annotation(RECORDED, 1100, 2100, cat="gpu_user_annotation")  # as a GPU's trace has it too
    assert recorded_span([*events, on_gpu]) == WITHIN


def test_parts_are_those_of_the_host_and_of_a_name():
    events = [
        annotation("verify", 1500, 1900),
        annotation("draft", 1100, 1400),
        annotation("draft", 1150, 1450, cat="gpu_user_annotation"),
        annotation("Optimizer.step#AdamW.step", 1100, 1200),
    ]
    assert named_spans(events, ("draft", "verify")) == [Span("draft", 1100, 1400), Span("verify", 1500, 1900)]


def test_what_holds_a_part_stands_before_it():
    events = [annotation("loss", 5, 7), annotation("forward", 5, 9), annotation("teacher", 1, 2)]
    assert [span.name for span in named_spans(events, ("forward", "loss", "teacher"))] == ["teacher", "forward", "loss"]


def test_a_part_is_counted_without_those_within_it():
    spans = [
        Span("student forward", 0, 10_000),
        Span("teacher", 0, 4_000),  # begins with what it is in
        Span("loss", 6_000, 9_000),
        Span("teacher", 7_000, 8_000),
        Span("backward", 10_000, 15_000),
        Span("student forward", 15_000, 16_000),
    ]
    assert own_ms(spans) == {"student forward": 10 - 4 - 3 + 1, "teacher": 4 + 1, "loss": 3 - 1, "backward": 5}


@pytest.mark.parametrize(
    ("work", "share"),
    [
        ([], 0.0),
        ([kernel(1000, 1100), kernel(1300, 1400)], 0.2),
        ([kernel(1000, 1300), kernel(1100, 1200), kernel(1200, 1500)], 0.5),  # streams at the same time count once
        ([kernel(1200, 1500), kernel(1000, 1300)], 0.5),  # in whatever order they are listed
        ([kernel(900, 1100), kernel(1900, 2500)], 0.2),  # what lies outside does not count
        ([kernel(0, 5000)], 1.0),
        ([kernel(1000, 1100, "gpu_memcpy"), kernel(1100, 1200, "gpu_memset")], 0.2),
        ([kernel(1000, 2000, "gpu_user_annotation"), kernel(1000, 2000, "cuda_runtime")], 0.0),  # no work
    ],
)
def test_a_gpu_is_busy_while_it_does_anything(work, share):
    assert gpu_busy_share(work, WITHIN) == pytest.approx(share)


def test_memory_of_a_processor_counts_from_the_beginning():
    events = [
        memory(1500, -300, 700),
        memory(1200, 500, 1000),
        memory(2001, 9, 709),  # after the end
        {"name": "[memory]", "cat": "x", "ts": 999, "args": {"Device Type": 0, "Total Allocated": 5, "Bytes": 5}},
    ]
    (found,) = memory_over_time(events, WITHIN)
    assert (found.device, found.ms, found.allocated_bytes) == ("cpu", (0.2, 0.5), (500, 200))
    assert found.reserved_bytes == ()


def test_memory_of_a_gpu_is_all_that_is_allocated_there():
    gpu = [memory(1000 + at, 10, 70 + at, kind=1, number=2, reserved=99) for at in (100, 300)]
    cpu, cuda = memory_over_time([*gpu, memory(1200, 5, 5)], WITHIN)
    assert (cpu.device, cuda.device) == ("cpu", "cuda:2")
    assert (cuda.ms, cuda.allocated_bytes, cuda.reserved_bytes) == ((0.1, 0.3), (170, 370), (99, 99))

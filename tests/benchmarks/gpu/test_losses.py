"""Losses that are measured: every path gives one value, and what cannot be measured says why."""

import time
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from benchmarks import loss
from benchmarks.gpu import losses
from benchmarks.gpu.losses import jobs, rows
from benchmarks.gpu.stage import Setting

NUMBERS = {"extra_mib", "seconds", "loss_nats"}


@pytest.fixture
def setting(tmp_path):
    return Setting(
        device=torch.device("cpu"),
        size="tiny",
        target=tmp_path,
        prompts=tmp_path,
        work=tmp_path,
        out=tmp_path,
        deadline_s=time.monotonic() + 600,
    )


@pytest.fixture
def in_this_process(monkeypatch):
    """Importing torch anew for each takes longer than all of them."""
    monkeypatch.setattr(
        losses,
        "measure_in_a_process",
        lambda job, *, device, repeats, threads: loss.measure(job, device=device, repeats=repeats),
    )


def test_all_paths_of_a_loss_give_one_value(in_this_process, setting):
    found = list(rows(setting))
    assert [(row["loss"], row["path"]) for row in found] == [
        (name, path) for name, paths in losses.PATHS_OF.items() for path in paths
    ]
    for name in losses.PATHS_OF:
        values = [row["loss_nats"] for row in found if row["loss"] == name and row["path"] != "liger"]
        assert values[0] > 0
        assert values[0] == pytest.approx(values[1], rel=1e-2)  # bfloat16 products
    for row in found:
        assert row.keys() >= (NUMBERS if "skipped" not in row else {"skipped"}), row
    if find_spec("liger_kernel") is None:
        assert found[-1]["skipped"] == "liger_kernel is not installed"


def test_a_process_of_its_own_gives_the_same_value(setting):
    job = jobs("tiny")[1]
    found = loss.measure_in_a_process(job, device="cpu", repeats=1, threads=1)
    assert found.keys() == NUMBERS
    assert found["loss_nats"] == loss.measure(job, device="cpu", repeats=1)["loss_nats"]


def test_a_process_that_fails_is_one_failed_row(monkeypatch, in_this_process, setting):
    measure = loss.measure
    monkeypatch.setattr(loss, "measure", lambda job, **more: {}["x"] if job.path == "plain" else measure(job, **more))
    found = list(rows(setting))
    assert {row["path"] for row in found if "failed" in row} == {"plain"}
    assert {row["path"] for row in found if "seconds" in row} >= {"chunked"}


def test_larger_chunks_are_measured_as_they_are_named(monkeypatch, in_this_process, setting):
    monkeypatch.setitem(losses.SIZES["tiny"], "more_chunks", (4, 16))
    monkeypatch.setattr(losses, "chunk_size", lambda _: 3)
    sizes = []
    whole = loss.chunked_sum
    monkeypatch.setattr(
        loss, "chunked_sum", lambda *args, **more: sizes.append(more["chunk_tokens"]) or whole(*args, **more)
    )
    larger = [row for row in rows(setting) if row["loss"] == "forward_kl" and row["chunk_tokens"] in (12, 48)]
    assert [row["chunk_tokens"] for row in larger] == [12, 48]
    assert {12, 48} <= set(sizes)
    assert len({row["loss_nats"] for row in larger}) == 1


def test_what_does_not_fit_is_left_out_with_its_reason(monkeypatch, setting):
    assert all("0 s are left" in row["skipped"] for row in rows(replace(setting, deadline_s=time.monotonic()))
               if row["path"] != "liger")  # fmt: skip
    monkeypatch.setattr("benchmarks.gpu.stage.free_bytes", lambda _: 1000)
    assert all("GiB free" in row["skipped"] for row in rows(setting) if row["path"] != "liger")


def test_a_gpu_is_asked_first_for_the_loss_that_none_has_told_of():
    found = jobs("full")
    assert [(job.path, job.vocab, job.chunk_tokens) for job in found[:6]] == [
        ("plain", 32_000, None),
        ("chunked", 32_000, 4 * 262),
        ("liger", 32_000, None),
        ("plain", 128_256, None),
        ("chunked", 128_256, 4 * 256),
        ("liger", 128_256, None),
    ]
    assert {job.loss for job in found[:6]} == {"jensen_shannon"}
    assert [job.chunk_tokens for job in found[6:]] == [None, 1048, None, 1024, 262, 256]
    assert {(job.tokens, job.hidden, job.teacher_hidden) for job in found} == {(8192, 4096, 4096)}
    assert [job.path for job in found if job.loss == "jensen_shannon"].count("liger") == 2

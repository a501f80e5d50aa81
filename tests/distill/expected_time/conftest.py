"""Device files by hand: an H100-like one, and one of two cores."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from architectures.shapes.shape import NAMED_SHAPES

Record = dict[str, Any]


def stage(*rows: Record, status: str = "done", reason: str | None = None) -> Record:
    return {"status": status, "reason": reason, "seconds": 1.0, "limit_s": 20.0, "rows": list(rows), "provenance": {}}


def step_row(shape: str, how: str, batch: int, median_ms: float, floor_ms: float) -> Record:
    sizes = NAMED_SHAPES[shape].shape
    return {
        "shape": shape,
        "layers": sizes.layers,
        "hidden": sizes.hidden,
        "parameters": sizes.parameters(),
        "how": how,
        "batch": batch,
        "context": 1024,
        "tokens": 1,
        "median_ms": median_ms,
        "floor_ms": floor_ms,
        "interval_ms": [median_ms, median_ms],
        "dtype": "bfloat16",
    }


def answer_row(model: str, batch: int, step_ms: float, share: float, how: str = "ours") -> Record:
    return {
        "model": model,
        "how": how,
        "batch": batch,
        "prompt_tokens": 512,
        "new_tokens": 64,
        "dtype": "bfloat16",
        "tokens_per_s": 900 * batch / step_ms,
        "step_ms": step_ms,
        "floor_share": share,
    }


def training_row(teacher: str | None, student: str, source: str, flops_per_s: float) -> Record:
    return {
        "teacher": teacher,
        "student": student,
        "source": source,
        "precision": "amp_bf16",
        "dtype": "bfloat16",
        "flops_per_s": flops_per_s,
        "step_s": 1.0,
        "tokens_per_s": 1.0,
        "mfu": 0.4,
    }


def h100() -> Record:
    return {
        "schema": 1,
        "device": "NVIDIA H100 80GB HBM3",
        "slug": "nvidia-h100-80gb-hbm3",
        "size": "full",
        "measured": "2026-12-01",
        "git_commit": "abc",
        "torch": "2.11.0",
        "python": "3.12.0",
        "stages": {
            "machine": stage(
                {"bandwidth_gb_s": 3000.0, "dtype": "bfloat16", "versions": {}},
                {"dtype": "bfloat16", "peak_flops": 700e12},
                {"dtype": "float32", "peak_flops": 50e12},
            ),
            "steps": stage(
                step_row("llama-7b", "eager", 1, 24.0, 4.5),
                step_row("llama-7b", "captured", 1, 6.0, 4.5),
                step_row("wide-796m", "eager", 1, 4.0, 0.8),
                step_row("wide-796m", "captured", 1, 1.25, 0.8),
                step_row("wide-796m", "captured", 8, 1.5, 0.9),
                {"shape": "wide-1.3b", "skipped": "no time"},
            ),
            "distillation": stage(
                training_row("llama-7b", "wide-796m", "live", 400e12),
                training_row("llama-7b", "wide-796m", "cached", 350e12),
                training_row(None, "wide-796m", "none", 300e12),
                status="cut",
            ),
            "answers": stage(
                answer_row("llama-7b", 48, 28.0, 0.4),
                answer_row("llama-7b", 48, 40.0, 0.3, how="transformers"),
                {"model": "llama-7b", "batch": 8, "failed": "OutOfMemoryError"},
                answer_row("target", 48, 20.0, 0.02),
            ),
        },
    }


def two_cores() -> Record:
    cores = {"batch": 48, "prompt_tokens": 32, "new_tokens": 16, "dtype": "bfloat16", "model": "target"}
    target = {**step_row("llama-7b", "eager", 1, 24.0, 12.0), "shape": "target", "layers": 30, "hidden": 576}
    return {
        "schema": 1,
        "device": "AMD EPYC, 2 cores",
        "slug": "amd-epyc-2-cores",
        "size": "laptop",
        "measured": "2026-12-02",
        "git_commit": "abc",
        "torch": "2.11.0",
        "stages": {
            "machine": stage({"bandwidth_gb_s": 22.0, "dtype": "bfloat16"}, {"dtype": "bfloat16", "peak_flops": 7e11}),
            "steps": stage({**target, "parameters": 134_515_008, "context": 128}),
            "distillation": stage(
                training_row("target", "6 layers", "live", 1.9e11), training_row("target", "6 layers", "cached", 1.5e11)
            ),
            "answers": stage({**cores, "how": "ours", "tokens_per_s": 500.0, "step_ms": 75.0, "floor_share": 0.19}),
        },
    }


@pytest.fixture
def device_file(tmp_path: Path) -> Callable[..., Path]:
    """device_file(record) -> a folder's file with it."""

    def write(record: Record) -> Path:
        folder = tmp_path / "devices"
        folder.mkdir(exist_ok=True)
        file = folder / f"{record['slug']}.json"
        file.write_text(json.dumps(record), encoding="utf-8")
        return file

    return write


@pytest.fixture
def records() -> dict[str, Record]:
    """The two, by a short name; a test may change them."""
    return {"h100": h100(), "cores": two_cores()}

"""Examples, and caches of them."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from architectures.manifest import write_manifest
from distill import teacher_cache
from distill.data.batches import Example, ResponseDataset
from distill.recipe.sections import TeacherConfig
from distill.teacher_cache import CaptureSettings, TeacherCache, capture_teacher
from tests.distill.conftest import random_responses


@pytest.fixture(scope="module")
def examples():
    sets = {"train": ResponseDataset(random_responses(10, 1), max_seq_len=MAX_SEQ_LEN)}
    sets["eval"] = ResponseDataset(random_responses(4, 2), max_seq_len=MAX_SEQ_LEN)
    assert sets["train"].counts.cut
    return {name: [with_two_responses(each) for each in dataset.examples] for name, dataset in sets.items()}


@pytest.fixture
def write(tiny_target, examples, tmp_path, monkeypatch):
    """write(teacher, name of the folder) -> the folder; shards of few tokens, so that there are several."""
    monkeypatch.setattr(teacher_cache, "MAX_SHARD_TOKENS", 40)

    def write(teacher: TeacherConfig, name: str = "cache", *, target: Path = tiny_target, **changes: Any) -> Path:
        settings = settings_for(teacher, **changes)
        finish = finish_into(tmp_path / name, seed=settings.seed)
        capture_teacher(target, examples, tmp_path / name, settings, inputs=INPUTS, finish=finish)
        return tmp_path / name

    return write


MAX_SEQ_LEN = 30
HIDDEN = TeacherConfig(source="cache")
TOP_K = TeacherConfig(source="cache", contents="top_k", k=5)
SAMPLES = TeacherConfig(source="cache", contents="samples", num_samples=7)
INPUTS = {"target": "a", "data": "b"}


def settings_for(teacher: TeacherConfig, **changes: Any) -> CaptureSettings:
    return dataclasses.replace(CaptureSettings(teacher, dtype="float32", seed=3, batch_size=3), **changes)


def with_two_responses(example: Example) -> Example:
    """The example with the fourth token of a longer response as what a user says in between."""
    ((first, end),) = example.spans
    return dataclasses.replace(example, spans=((first, first + 3), (first + 4, end))) if end > first + 4 else example


def read_all(cache: TeacherCache) -> list[dict[str, torch.Tensor]]:
    return [cache.rows(response) for response in range(len(cache))]


def finish_into(folder: Path, **more: Any) -> Callable[..., None]:
    """What ends a capture: the manifest of a cache, as its stage writes it."""
    return partial(write_manifest, folder, stage="cache", inputs=INPUTS, **more)

"""What the tests of teacher caches are made of: settings, responses, three contents."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from architectures.manifest import write_manifest
from distill.data.batches import Example
from distill.recipe.sections import TeacherConfig
from distill.teacher_cache import CaptureSettings, TeacherCache

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

"""Examples, and caches of them."""

from pathlib import Path
from typing import Any

import pytest

from distill import teacher_cache
from distill.data.batches import ResponseDataset
from distill.recipe.sections import TeacherConfig
from distill.teacher_cache import capture_teacher
from tests.distill.conftest import random_responses
from tests.distill.teacher_cache.made import INPUTS, MAX_SEQ_LEN, finish_into, settings_for, with_two_responses


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

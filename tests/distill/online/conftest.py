"""Tiny runs that learn from requests: a stream of letters, responses recorded for it, and a cache of the teacher."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distill.pipeline import cache_stage
from distill.run import Run
from tests.distill.conftest import NUM_TRAIN, random_responses

NUM_REQUESTS = NUM_TRAIN
SETTINGS = {"num_speculative_tokens": 3, "update_interval": 2, "steps_per_update": 1}


@pytest.fixture
def stream_files(tmp_path: Path) -> list[Path]:
    """Requests of two files, one after the other."""
    paths = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    half = NUM_REQUESTS // 2
    for path, numbers in zip(paths, (range(half), range(half, NUM_REQUESTS)), strict=True):
        path.write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in numbers))
    return paths


@pytest.fixture
def make_online(make_run: Callable[..., Any], stream_files: list[Path]) -> Callable[..., Any]:
    """make_online(name, online={...}, **keys of distill) -> Recipe of a run that is ready to learn from requests."""

    def make(name: str = "run", online: dict[str, Any] | None = None, **distill: Any) -> Any:
        stream = {"sources": [{"path": str(path)} for path in stream_files]}
        settings = {
            "online": {"responses": "recorded", "stream": stream, **SETTINGS, **(online or {})},
            "teacher": {"source": "cache"},
            "max_duration": "1ep",
            "eval_interval": "1dur",
            "device_train_microbatch_size": 1,
            "optimizer": {"lr": 1e-2},
            "scheduler": {"name": "constant_with_warmup", "t_warmup": "0ba"},
        }
        recipe = make_run(name, **{**settings, **distill})
        serve_the_stream(recipe, stream_files)
        cache_stage(Run.of(recipe))
        return recipe

    return make


def records(recipe: Any, name: str = "records.jsonl") -> list[dict[str, Any]]:
    """What was logged of each served request."""
    lines = (Path(recipe.run_dir) / "online" / name).read_text().splitlines()
    return [json.loads(line) for line in lines]


def serve_the_stream(recipe: Any, stream_files: list[Path]) -> None:
    """Give the recorded responses the places of the stream's rows."""
    from eval.responses import rows_of, shard_paths, write_shard

    [path] = shard_paths(Run.of(recipe).data.path, "train", 1)
    if not recipe.distill.trains_on_responses:
        path.unlink(missing_ok=True)
        return
    traces = random_responses(NUM_REQUESTS, seed=NUM_REQUESTS)
    places = [f"{file}:{i + 1}" for file in stream_files for i in range(NUM_REQUESTS // 2)]
    write_shard(path, rows_of([replace(each, source=place) for each, place in zip(traces, places, strict=True)]))

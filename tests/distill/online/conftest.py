"""Tiny runs that learn from requests: a stream of letters, answers recorded for it, and a cache of the teacher."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distill.run.run import Run
from distill.stages.running import cache_stage
from tests.distill.conftest import NUM_TRAIN, random_answers

NUM_REQUESTS = NUM_TRAIN
SETTINGS = {"lookahead": 3, "update_interval": 2, "guard": None, "positions": "rejected", "steps_per_update": 1}


@pytest.fixture
def stream_file(tmp_path: Path) -> Path:
    """Requests of two labels, one after the other."""
    path = tmp_path / "requests.jsonl"
    rows = (
        {"prompt": f"say {i}", "topic": "first" if i < NUM_REQUESTS // 2 else "second"} for i in range(NUM_REQUESTS)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def make_online(make_run: Callable[..., Any], stream_file: Path) -> Callable[..., Any]:
    """make_online(name, online={...}, **keys of distill) -> Recipe of a run that is ready to learn from requests."""

    def make(name: str = "run", online: dict[str, Any] | None = None, **distill: Any) -> Any:
        stream = {"sources": [{"path": str(stream_file)}], "label": "topic"}
        settings = {
            "mode": "online",
            "online": {"answers": "recorded", "stream": stream, **SETTINGS, **(online or {})},
            "teacher": {"source": "cache"},
            "max_duration": "1ep",
            "eval_interval": "1dur",
            "device_train_microbatch_size": 1,
            "optimizer": {"lr": 1e-2},
            "scheduler": {"name": "constant_with_warmup", "t_warmup": "0ba"},
        }
        recipe = make_run(name, **{**settings, **distill})
        answer_the_stream(recipe, stream_file)
        cache_stage(Run.of(recipe))
        return recipe

    return make


def answer_the_stream(recipe: Any, stream_file: Path) -> None:
    """Give the recorded answers the places of the stream's rows."""
    from eval.answers.shards import shard_paths, write_shard
    from eval.answers.traces import rows_of

    [path] = shard_paths(Run.of(recipe).data.path, "train", 1)
    if not recipe.distill.learns_answers:
        path.unlink(missing_ok=True)
        return
    traces = random_answers(NUM_REQUESTS, seed=NUM_REQUESTS)
    write_shard(path, rows_of([replace(each, source=f"{stream_file}:{i + 1}") for i, each in enumerate(traces)]))

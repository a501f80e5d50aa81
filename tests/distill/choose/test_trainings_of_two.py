"""Candidates trained by two processes: what a lost one costs, and where longer trainings begin."""

import json
from pathlib import Path

import pytest

from distill import pipeline, train
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.choose import search
from distill.choose.candidates import ChooseSettings
from distill.choose.search import choose
from tests.distill.run.test_progressive import TINY
from tests.eval.records import latency
from tests.sharing import by_processes

LAYERS = (1, 2)


def measured_steps(_recipe, _target, candidates, settings):
    """Step times of models so small say nothing."""
    times = {one.name: ({1: 4.0, 2: 6.0}[one.shape.layers],) * 2 for one in candidates}
    timed = latency(40.0, {1: 42.0}, times, 0.5)
    return timed.model_copy(update={"batch": settings.batch_size, "context_tokens": settings.context})


@pytest.fixture
def fatal() -> list[int]:
    """The how-manieth training nobody ends."""
    return []


@pytest.fixture
def trained(monkeypatch, trainings_begin_at_once, fatal) -> list[str]:
    """Folders of the trainings that were begun; who begins the one that its fixture `fatal` names is killed."""
    begun = list[str]()

    def run_training(path: Path, *_: object) -> None:
        begun.append(path.parent.name)
        if len(begun) in fatal:
            fatal.clear()
            raise MemoryError("killed")
        train.main([str(path)])

    monkeypatch.setattr(pipeline, "run_training", run_training)
    monkeypatch.setattr(train, "restore_signals", lambda: None)
    monkeypatch.setattr(search, "measured_steps", measured_steps)
    return begun


def found(recipe: Path) -> tuple[dict[str, bytes], object]:
    """Weights of all candidates, and their acceptance."""
    folder = recipe.parent / "out" / "choose" / "2ba"
    weights = {path.parent.parent.name: path.read_bytes() for path in folder.glob("*/draft/model.safetensors")}
    return weights, json.loads((folder / "eval" / "scorecard.json").read_text())["acceptance"]


def choose_by_two(recipe: Path, *words: str, longest: str = "2ba") -> None:
    settings = ChooseSettings(recipe=recipe, layers=LAYERS, duration="2ba", longest=longest)
    by_processes(2, lambda share: choose(recipe, [*TINY, *words], settings, share))


def test_a_lost_process_costs_the_training_it_was_at(recipe_file, trained, fatal):
    fatal.append(2)
    with pytest.raises(MemoryError):
        choose_by_two(recipe_file)
    assert len(trained) == 2
    ended = trained[0]
    trained.clear()
    choose_by_two(recipe_file)
    assert sorted(trained) == sorted(f"{layers}-layers" for layers in LAYERS if f"{layers}-layers" != ended)
    resumed = found(recipe_file)
    (recipe_file.parent / "out").rename(recipe_file.parent / "resumed")
    trained.clear()
    choose_by_two(recipe_file)
    assert len(trained) == 2
    assert found(recipe_file) == resumed


@pytest.mark.usefixtures("trained")
def test_longer_trainings_go_on_from_sharded_checkpoints(recipe_file, monkeypatch):
    """As from whole ones, which test_search.py sees; those of the shorter training stay."""
    monkeypatch.setattr(search, "in_play", list)
    words = ("distill.checkpoints=sharded", "distill.save_num_checkpoints_to_keep=1")
    choose_by_two(recipe_file, *words, longest="4ba")
    for layers in LAYERS:
        shorter, longer = (
            recipe_file.parent / "out" / "choose" / length / f"{layers}-layers" for length in ("2ba", "4ba")
        )
        lines = (longer / "logs" / "metrics.jsonl").read_text().splitlines()
        assert min(json.loads(line)["batch"] for line in lines) >= 2
        assert [path.name for path in find_checkpoints(shorter / "checkpoints")] == ["ep1-ba2"]
        assert [path.name for path in find_checkpoints(longer / "checkpoints")] == ["ep3-ba4"]

"""One run, one owner; and a folder becomes a run's only if nothing of anybody's is in it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import ELOOP
from pathlib import Path
from typing import Any

import pytest

import widedraft
from architectures.errors import UserError
from architectures.files import partial_path
from distill.check import check_recipe
from distill.recipe.recipe import Recipe, save_recipe
from distill.run import LOCK_NAME, OWNED_VARIABLE, Run, held, owned, owned_folders, owned_run, require_run_folder
from tests import processes
from tests.processes import Warm
from tests.rejections import rejects

ROOT = Path(__file__).parents[3]
HOLD = """
import sys, time
from pathlib import Path
from distill.run import owned
with owned(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(60)
"""
# Holds a run as `widedraft distill` does: its training inherits the lock.
HOLD_BY_A_CHILD = """
import subprocess, sys
from pathlib import Path
from distill import pipeline as processes
from distill.run import Run, owned
wait = "import time; print('mine', flush=True); time.sleep(60)"
processes.training_command = lambda words: [sys.executable, "-c", wait]
with owned(Path(sys.argv[1])):
    processes.run_training(Run(None, Path(sys.argv[1])))
"""


@pytest.fixture
def hold() -> Iterator[Callable[..., Warm]]:
    """hold(folder, code) -> a process that owns the folder; its whole group is killed after the test."""
    processes = []

    def start(folder: Path, code: str = HOLD) -> Warm:
        process = Warm(
            [sys.executable, "-c", code, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), OWNED_VARIABLE: ""},
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "mine\n"
        return process

    yield start
    for process in processes:
        with suppress(ProcessLookupError):  # the test has killed it
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def make_recipe(run: Path, target: Path | str = "t", **architecture: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "run_name": "x",
            "run_dir": str(run),
            "target": {"path": str(target)},
            "architecture": {"layers": 1, **architecture},
            "data": {"self_written_prompts": 1},
        }
    )


def test_the_second_says_who_holds_the_run_and_a_killed_holder_frees_it_at_once(tmp_path, hold):
    process = hold(tmp_path)
    with rejects(f"{tmp_path}:", process.pid, os.uname().nodename, f"`-c {tmp_path}`"), owned(tmp_path):
        pass
    process.kill()
    process.wait()
    with owned(tmp_path):
        assert json.loads((tmp_path / LOCK_NAME).read_text())["pid"] == os.getpid()
    assert (tmp_path / LOCK_NAME).read_text() == ""


COMMANDS = ["prune", "generate", "cache", "distill", "export", "eval", "choose", "run"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_writes_into_a_run_is_refused_in_one_that_is_held(make_run, hold, capsys, command):
    recipe = make_run()
    hold(Path(recipe.run_dir))
    before = sorted(Path(recipe.run_dir).rglob("*"))
    assert widedraft.main([command, f"{recipe.run_dir}/recipe.yaml"]) == 2
    assert f"{recipe.run_dir}: " in capsys.readouterr().err
    assert sorted(Path(recipe.run_dir).rglob("*")) == before


def test_a_training_without_widedraft_around_it_is_refused_too(make_run, hold, capsys):
    from distill.train import main

    recipe = make_run()
    hold(Path(recipe.run_dir))
    assert main([f"{recipe.run_dir}/recipe.yaml"]) == 2
    assert f"{recipe.run_dir}: " in capsys.readouterr().err


def test_a_training_that_outlives_its_command_keeps_the_run(tmp_path, hold):
    process = hold(tmp_path, HOLD_BY_A_CHILD)
    process.kill()
    process.wait()
    with rejects(process.pid), owned(tmp_path):
        pass
    os.killpg(process.pid, signal.SIGKILL)  # the training
    for _ in range(100):  # the kernel closes its files in a moment
        try:
            with owned(tmp_path):
                return
        except UserError:
            time.sleep(0.05)
    pytest.fail("still held")


def test_what_an_owner_starts_owns_the_run_as_well(tmp_path, monkeypatch):
    monkeypatch.setenv(OWNED_VARIABLE, "")
    with owned(tmp_path):
        with owned(tmp_path / ".." / tmp_path.name):
            assert owned_folders() == [str(tmp_path)]
        code = HOLD.replace("time.sleep(60)", "pass")
        command = [sys.executable, "-c", code, str(tmp_path)]
        assert processes.run(command, cwd=ROOT, check=True).stdout == "mine\n"
        with owned(tmp_path / "stage-6"):
            assert owned_folders() == [str(tmp_path), str(tmp_path / "stage-6")]
    assert owned_folders() == []


def test_a_new_owner_removes_what_a_killed_one_left_half_written(tmp_path):
    (tmp_path / "data").mkdir()
    left = partial_path(tmp_path / "data" / "train-00001.jsonl")
    left.touch()
    with owned(tmp_path):
        assert not left.exists()


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / LOCK_NAME).symlink_to("precious")
    with rejects(ELOOP, LOCK_NAME, error=OSError), owned(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("written", ["", "[]", "{}", "\x00", "not json"])
def test_an_owner_who_has_not_said_who_it_is(tmp_path, hold, written):
    hold(tmp_path)
    (tmp_path / LOCK_NAME).write_text(written)
    with rejects(tmp_path), owned(tmp_path):
        pass


def no_run(recipe: Recipe) -> str:
    """The refusal, by the check of a recipe, by owning its run, and by every command through that."""
    with pytest.raises(UserError) as caught, owned_run(Run.of(recipe)):
        pass
    with pytest.raises(UserError) as checked:
        check_recipe(recipe)
    assert str(caught.value) in str(checked.value)
    return str(caught.value)


def test_a_run_may_not_fill_the_root_a_home_or_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "passwd").write_text("x")
    for folder in (Path("/"), tmp_path / "home", tmp_path / "passwd"):
        assert f"run_dir={folder}: is " in no_run(make_recipe(folder))
    assert list((tmp_path / "home").iterdir()) == []


def test_a_run_may_not_lie_in_a_checkpoint_it_reads(tmp_path, tiny_target):
    before = sorted(tiny_target.iterdir())
    for run in (tiny_target, tiny_target / "run", tiny_target / ".." / tiny_target.name):
        assert f"inside target.path={tiny_target}" in no_run(make_recipe(run, tiny_target))
        source = make_recipe(run, tmp_path / "other", source=str(tiny_target))
        assert f"inside architecture.source={tiny_target}" in no_run(source)
    assert sorted(tiny_target.iterdir()) == before


def test_a_run_does_not_begin_among_somebodys_files(tmp_path):
    (tmp_path / "recipe.yaml").write_text("# my own, with comments\nrun_name: x\n")
    assert "is not empty" in no_run(make_recipe(tmp_path))
    assert list(tmp_path.iterdir()) == [tmp_path / "recipe.yaml"]


def test_a_run_of_ours_goes_on(tmp_path, tiny_target):
    recipe = make_recipe(tmp_path, tiny_target)
    require_run_folder(Run.of(recipe))  # empty
    save_recipe(recipe, tmp_path / "recipe.yaml")
    require_run_folder(Run.of(recipe))  # as every version left it
    (tmp_path / "recipe.yaml").unlink()
    (tmp_path / "mask_checkpoints").mkdir()
    (tmp_path / LOCK_NAME).touch()
    require_run_folder(Run.of(recipe))  # a training began without a stage before it


def test_a_run_may_hold_its_target(tmp_path, tiny_target):
    """As debug runs do, and runs with a GGUF target."""
    save_recipe(make_recipe(tmp_path), tmp_path / "recipe.yaml")
    (tmp_path / "target").symlink_to(tiny_target)
    require_run_folder(Run.of(make_recipe(tmp_path, tmp_path / "target")))


def test_a_stage_of_a_run_that_is_held_goes_on_within_it(make_run):
    recipe = make_run()
    with owned_run(Run.of(recipe)):
        assert widedraft.main(["prune", f"{recipe.run_dir}/recipe.yaml"]) == 0
    assert held == {}

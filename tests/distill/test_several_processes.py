"""Commands that a launcher starts twice: the files of one process, one message, and nothing lost but what was begun.

Stages are also run by two threads that take turns, of which one may be killed: what was finished is not made again.
That a training goes on from its newest checkpoint is tested in test_distributed.py.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import widedraft
from architectures.sharing import ALONE, Share
from distill import teacher_cache
from distill.pipeline import cache_stage, checkpoints_stage, distill_stage, eval_stage, generate_stage, prune_stage
from distill.process import AGAIN
from distill.recipe.recipe import load_recipe
from distill.run import LOCK_NAME, Run
from eval.checkpoint_curve import JSON_NAME
from eval.decoding import generate as answering
from tests.conftest import train_here
from tests.distill.recipe_files import write_recipe
from tests.sharing import by_processes

ROOT = Path(__file__).parents[2]
SETTINGS = """
data: {{prompts: [{{path: {prompts}}}], num_eval_prompts: 4, max_new_tokens: 8, max_seq_len: 128, batch_size: 1,
  temperature: 1.0}}
distill: {{max_duration: 2ba, global_train_batch_size: 4, precision: fp32, scheduler: {{t_warmup: 1ba}},
  teacher: {{source: cache}}}}
export: {{dtype: float32}}
eval:
  {{num_prompts: 2, max_new_tokens: 8, num_speculative_tokens: [1, 2], latency_repeats: 2, wall_clock_prompts: 2,
    latency_batch_sizes: [], dtype: float32}}
"""
CUT = "{layers: 2, method: greedy, calibration: {tokens: 64}}"
OF_WHEN_AND_WHERE = ("created", "argv", "git_commit", "hardware")


@pytest.fixture
def recipe(tiny_target, tmp_path) -> Path:
    return write_recipe(tmp_path, tiny_target, CUT, SETTINGS)


def launch(
    *words: str, program: tuple[str, ...] = ("-m", "widedraft"), processes: int = 2
) -> subprocess.CompletedProcess[str]:
    """What `composer -n 2` says of a command; each process imports what it needs, unless a test asks for `warm`."""
    command = [sys.executable, "-m", "composer", "-n", str(processes), *program, *words]
    ours = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))  # another clone may be installed
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ours}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def contents(run: Path, *folders: str) -> dict[str, Any]:
    """Every file of some folders; manifests without when, where and by which words they were written."""
    files = {str(path.relative_to(run)): path for name in folders for path in (run / name).rglob("*") if path.is_file()}
    return {name: manifest(path) if path.name == "manifest.json" else path.read_bytes() for name, path in files.items()}


def manifest(path: Path) -> dict[str, Any]:
    told = json.loads(path.read_text())
    return {**told, "provenance": {k: v for k, v in told["provenance"].items() if k not in OF_WHEN_AND_WHERE}}


@pytest.mark.slow
@pytest.mark.usefixtures("warm", "training_here")
def test_two_processes_make_the_files_of_one(recipe, tmp_path):
    """A whole run; the training's sums differ in their last bits, and what is timed differs from run to run."""
    launched = launch("run", str(recipe))
    assert launched.returncode == 0, launched.stderr
    together = tmp_path / "together"
    (tmp_path / "run").rename(together)
    assert widedraft.main(["run", str(recipe)]) == 0
    alone = tmp_path / "run"
    same = ("data", "scores", "init", "teacher_cache", "eval/responses", "eval/tuning")
    assert contents(together, *same) == contents(alone, *same)
    assert {path.name for path in together.iterdir()} == {path.name for path in alone.iterdir()}
    assert {path.name for path in (together / "eval").iterdir()} == {path.name for path in (alone / "eval").iterdir()}
    assert (together / LOCK_NAME).read_bytes() == b""
    for name in ("== generate", "== eval", "report:", "one of 2 processes"):
        assert launched.stdout.count(name) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_processes_with_different_recipes_are_refused(recipe, tmp_path):
    """And nothing is written; of the training alone as well."""
    (tmp_path / "other.py").write_text(
        "import os, sys\n"
        "other = ['data.batch_size=3', 'seed=5'] if os.environ['RANK'] == '1' else []\n"
        "import distill.process\n"
        "from distill.train import main as train\n"
        "import widedraft\n"
        "command, *words = sys.argv[1:]\n"
        "sys.exit(train([*words, *other]) if command == 'train' else widedraft.main([command, *words, *other]))\n"
    )
    differing = "data.batch_size is 1 and 3; seed is 17 and 5"
    for words in (["generate", str(recipe)], ["train", str(recipe)]):
        refused = launch(*words, program=(str(tmp_path / "other.py"),))
        assert refused.returncode == 2, refused.stderr
        assert (refused.stdout + refused.stderr).count(differing) == 1
        assert "Traceback" not in refused.stdout + refused.stderr
    assert not (tmp_path / "run" / "data").exists()


LOSING_ONE = """
import os, signal, sys
from eval.decoding import generate
import widedraft

write, written = generate.write_shard, []

def die(path, rows):
    if os.environ["RANK"] == sys.argv[1] and len(written) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    written.append(path)
    write(path, rows)

generate.write_shard = die
sys.exit(widedraft.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_lost_process_ends_the_other_and_costs_its_shard(recipe, tmp_path):
    (tmp_path / "losing.py").write_text(LOSING_ONE)
    lost = launch("1", "generate", str(recipe), program=(str(tmp_path / "losing.py"),))
    assert lost.returncode not in (0, 2)
    assert "Traceback" not in lost.stderr
    assert lost.stderr.count(AGAIN) == 1
    data = tmp_path / "run" / "data"
    kept = {path: path.stat().st_mtime_ns for path in data.glob("*-*.jsonl")}
    assert kept
    assert not (data / "manifest.json").exists()
    assert widedraft.main(["generate", str(recipe)]) == 0  # one process goes on
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


# Two threads in place of two processes

UNITS = {  # of a stage: object and name of the function that makes one of the files that processes share out
    "generate": (answering, "write_shard"),
    "cache": (teacher_cache, "write_tensors"),
    "eval": (answering, "write_shard"),
}
STAGES: dict[str, tuple[Callable[[Run], object], tuple[str, ...], tuple[str, ...]]] = {
    # what does it, the folders it makes, and those of them that hold nothing that is timed
    "generate": (generate_stage, ("data",), ("data",)),
    "prune": (prune_stage, ("scores", "init"), ("scores", "init")),
    "cache": (cache_stage, ("teacher_cache",), ("teacher_cache",)),
    "distill": (distill_stage, ("checkpoints", "draft", "logs"), ()),
    "eval": (eval_stage, ("eval",), ("eval/responses",)),
}


@pytest.fixture(scope="module")
def whole(make_checkpoint, tmp_path_factory, trainings_begin_at_once) -> Path:
    """A folder with a recipe, and its run by one process as "whole"."""
    folder = tmp_path_factory.mktemp("lost")
    write_recipe(folder, make_checkpoint(seed=1), CUT, SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        train_here(patch)
        for stage in STAGES:
            STAGES[stage][0](run_of(folder))
    return (folder / "run").rename(folder / "whole").parent


def run_of(folder: Path, share: Share = ALONE) -> Run:
    return Run.of(load_recipe(folder / "recipe.yaml", []), share)


def carry_out_by_two(stage: str, folder: Path) -> None:
    by_processes(2, lambda share: STAGES[stage][0](run_of(folder, share)))


def run_before(stage: str, folder: Path) -> Path:
    """The run as it is before a stage."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(folder / "whole", run, symlinks=True)
    for name in list(STAGES)[list(STAGES).index(stage) :]:
        for made in STAGES[name][1]:
            shutil.rmtree(run / made)
    return run


class Units:
    """Counts the units of a stage that are made, and kills who comes to one of them."""

    def __init__(self, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
        holder, name = UNITS[stage]
        self.count, self.fatal, make = 0, 0, getattr(holder, name)

        def counted(*words: Any, **named: Any) -> Any:
            self.count += 1
            if self.count == self.fatal:
                raise MemoryError("killed")
            return make(*words, **named)

        monkeypatch.setattr(holder, name, counted)


@pytest.mark.parametrize("stage", UNITS)
def test_two_processes_and_a_lost_one_make_the_files_of_one(whole, monkeypatch, stage):
    """What was made is not made again, but for one unit at most."""
    units, (_, folders, compared) = Units(stage, monkeypatch), STAGES[stage]
    run = run_before(stage, whole)
    carry_out_by_two(stage, whole)
    assert contents(run, *compared) == contents(whole / "whole", *compared)

    num_units, units.count, units.fatal = units.count, 0, units.count // 2 + 1
    run = run_before(stage, whole)
    with pytest.raises(MemoryError):
        carry_out_by_two(stage, whole)
    num_left, units.count, units.fatal = num_units - (units.fatal - 1), 0, 0
    carry_out_by_two(stage, whole)
    assert num_left <= units.count <= num_left + 1
    assert contents(run, *compared) == contents(whole / "whole", *compared)
    for folder in folders:
        assert names(run / folder) == names(whole / "whole" / folder)  # nothing that was kept stays


def test_checkpoints_that_two_score_are_those_of_one(whole):
    run, curves = whole / "run", []
    for count in (1, 2):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole / "whole", run, symlinks=True)
        by_processes(count, lambda share: checkpoints_stage(run_of(whole, share)))
        curves.append((run / "eval" / JSON_NAME).read_bytes())
    assert curves[0] == curves[1]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))

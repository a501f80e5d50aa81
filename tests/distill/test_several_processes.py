"""Commands that a launcher starts twice: the files of one process, one message, and nothing lost but what was begun."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import widedraft
from distill.process import AGAIN
from distill.run import LOCK_NAME
from tests.distill.recipe_files import write_recipe

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

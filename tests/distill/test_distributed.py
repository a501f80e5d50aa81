"""Training in several processes: the same draft as one process makes, one message when something is wrong.

Every launch is a program of its own, so nothing of it stays behind in this process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from distill.checkpoints import find_checkpoints
from distill.recipe import save_recipe
from distill.teacher_cache.stage import cache_stage
from distill.train import train

ROOT = Path(__file__).parents[2]
TOLERANCE = {"rtol": 0.0, "atol": 1e-5}  # of weights after a few steps at learning rate 1e-3: sums in another order
MOMENT_RTOL = 1e-5  # of the norm of Adam's first moments, which keep the size of the gradients

pytestmark = pytest.mark.slow  # a launch imports torch and Composer in two processes


def launch(
    recipe, num_processes: int, *, cwd: Path = ROOT, program: tuple[str, ...] = ("-m", "distill.train"), **distill
) -> subprocess.CompletedProcess[str]:
    path = Path(recipe.run_dir) / "recipe.yaml"
    save_recipe(recipe, path)
    command = [sys.executable, "-m", "composer", "-n", str(num_processes), *program, str(path)]
    overrides = [f"distill.{key}={value}" for key, value in distill.items()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *overrides], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def changed(recipe, **distill):
    return recipe.model_copy(update={"distill": recipe.distill.model_copy(update=distill)})


def last_state(recipe) -> dict:
    return torch.load(find_checkpoints(Path(recipe.run_dir) / "checkpoints")[-1], weights_only=False)["state"]


def last_alpha(recipe) -> float:
    lines = (Path(recipe.run_dir) / "logs" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics/eval/alpha"] for line in lines if "metrics/eval/alpha" in line][-1]


def assert_same_training(one, other) -> None:
    states = [last_state(recipe) for recipe in (one, other)]
    ours, theirs = (state["model"] for state in states)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], **TOLERANCE)
    moments, other_moments = (next(iter(state["optimizers"].values()))["state"] for state in states)
    assert moments.keys() == other_moments.keys()
    flat, other_flat = (
        torch.cat([each[name]["exp_avg"].flatten() for name in moments]) for each in (moments, other_moments)
    )
    assert (flat - other_flat).norm() / flat.norm() < MOMENT_RTOL
    assert last_alpha(one) == pytest.approx(last_alpha(other), rel=1e-5)


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp2"])
def test_two_processes_equal_one(make_run, parallelism):
    settings = {
        "device_train_microbatch_size": 1,
        "gradient_clipping": {"clipping_threshold": 0.05},  # reached at every step
    }
    alone, together = make_run("alone", **settings), make_run("together", parallelism=parallelism, **settings)
    first = launch(together, 2, max_duration="4ba")
    assert first.returncode == 0, first.stderr
    train(changed(alone, max_duration="4ba"))
    assert_same_training(alone, together)

    train(changed(alone, max_duration="5ba"))  # the checkpoint of two processes is continued by one
    train(changed(together, max_duration="5ba", parallelism="ddp"))
    assert_same_training(alone, together)
    draft = AutoModelForCausalLM.from_pretrained(Path(together.run_dir) / "draft")
    assert draft.lm_head.weight is draft.model.embed_tokens.weight

    if parallelism == "fsdp2":  # and that of one by two, who each take their shard of it
        train(changed(alone, max_duration="6ba"))
        second = launch(together, 2, max_duration="6ba")
        assert second.returncode == 0, second.stderr
        assert_same_training(alone, together)


IN_CHUNKS = """
import sys
import distill.own_packages
import distill.chunked
distill.chunked.chunk_size = lambda vocab: 7
from distill.train import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp2"])
def test_packed_chunks_in_two_processes_equal_padded_whole_logits_in_one(make_run, tmp_path, monkeypatch, parallelism):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    alone = make_run("alone", max_duration="2ba", device_train_microbatch_size=1)
    together = make_run("together", max_duration="2ba", device_train_microbatch_size=2, packing=True)
    (tmp_path / "in_chunks.py").write_text(IN_CHUNKS)
    completed = launch(together, 2, program=(str(tmp_path / "in_chunks.py"),), parallelism=parallelism)
    assert completed.returncode == 0, completed.stderr
    train(alone)
    assert_same_training(alone, together)


@pytest.mark.parametrize("contents", ["hidden", "top_k"])
def test_two_processes_read_what_one_reads_from_a_cache(make_run, contents):
    settings = {"device_train_microbatch_size": 1, "max_duration": "4ba"}
    settings["teacher"] = {"source": "cache", "contents": contents}
    alone, together = make_run("alone", **settings), make_run("together", **settings)
    for recipe in (alone, together):
        cache_stage(recipe)
    completed = launch(together, 2)
    assert completed.returncode == 0, completed.stderr
    train(alone)
    assert_same_training(alone, together)
    if contents == "top_k":
        logs = [
            (Path(recipe.run_dir) / "logs" / "metrics.jsonl").read_text().splitlines() for recipe in (alone, together)
        ]
        first, second = (
            next(line for line in map(json.loads, log) if "metrics/train/alpha_low" in line) for log in logs
        )
        for name in ("metrics/train/alpha_low", "metrics/train/alpha_high"):
            assert first[name] == pytest.approx(second[name], rel=1e-5)


def test_fsdp2_in_one_process_equals_ddp(make_run):
    plain, sharded = make_run("plain", max_duration="3ba"), make_run("sharded", parallelism="fsdp2", max_duration="3ba")
    train(plain)
    completed = launch(sharded, 1)
    assert completed.returncode == 0, completed.stderr
    assert_same_training(plain, sharded)


def test_a_user_error_is_said_once(make_run):
    recipe = make_run(global_train_batch_size=5)
    completed = launch(recipe, 2)
    assert completed.returncode == 2
    message = "distill.global_train_batch_size must be a multiple of the number of processes, got 5 and 2."
    assert (completed.stdout + completed.stderr).count(message) == 1
    assert "Traceback" not in completed.stdout + completed.stderr


def test_a_full_disk_is_said_once(make_run, tmp_path):
    recipe = make_run(max_duration="1ba")
    (tmp_path / "sitecustomize.py").write_text(
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    )
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        completed = launch(recipe, 2)
    finally:
        del os.environ["PYTHONPATH"]
    assert completed.returncode == 2
    assert (completed.stdout + completed.stderr).count("writing this checkpoint failed (File too large)") == 1
    assert "Traceback" not in completed.stdout + completed.stderr


def test_a_file_of_the_working_folder_that_hides_a_package_is_named(make_run, tmp_path):
    (tmp_path / "eval.py").write_text("")
    completed = launch(make_run(), 2, cwd=tmp_path)
    assert completed.returncode == 2
    message = f"{tmp_path / 'eval.py'}: hides widedraft's own package 'eval' at {ROOT / 'eval'}."
    assert (completed.stdout + completed.stderr).count(message) == 1
    assert "Traceback" not in completed.stdout + completed.stderr

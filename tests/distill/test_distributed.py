"""Training in several processes: the same draft as one process makes, one message when something is wrong.

What only trains is trained by a pair of processes that stays; launches, and what ends one, have programs of their own.
"""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from composer.utils import get_free_tcp_port
from transformers import AutoModelForCausalLM

from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.checkpoints.folders import METADATA_NAME, damage, read_metadata
from distill.pipeline import cache_stage
from distill.process import AGAIN
from distill.recipe.recipe import save_recipe
from distill.recipe.sections import TeacherConfig
from distill.run import OWNED_VARIABLE, Run, owned
from distill.train import train
from tests.distill.after_training import Touch, changed, first_moments, metrics, read_checkpoint, relative_difference
from tests.distill.small_heads import cut_draft
from tests.distill.test_several_processes import launch
from tests.distill.two_processes import attempt, train_by
from tests.processes import Warm

ROOT = Path(__file__).parents[2]
TOLERANCE = {"rtol": 0.0, "atol": 1e-5}  # of weights after a few steps at learning rate 1e-3: sums in another order
MOMENT_RTOL = 1e-5  # of the norm of Adam's first moments, which keep the size of the gradients
ONE_BY_ONE = {
    "device_train_microbatch_size": 1,
    "scheduler": {"name": "constant_with_warmup", "t_warmup": "1ba"},  # however long the training is
    "eval_interval": "1ba",
    "save_interval": "1dur",
    "save_num_checkpoints_to_keep": 9,
}


def launched(
    recipe, num_processes: int, *, program: tuple[str, ...] = ("-m", "distill.train"), **distill
) -> subprocess.CompletedProcess[str]:
    """A training by Composer's launcher."""
    path = Path(recipe.run_dir) / "recipe.yaml"
    save_recipe(recipe, path)
    overrides = [f"distill.{key}={value}" for key, value in distill.items()]
    return launch(str(path), *overrides, program=program, processes=num_processes)


def state_after(recipe, batch: int) -> dict:
    """Of the checkpoint behind a batch."""
    found = [path for path in find_checkpoints(Path(recipe.run_dir) / "checkpoints") if f"-ba{batch}" in path.name]
    assert found, batch
    return read_checkpoint(found[-1])


def assert_same_training(alone, together, batch: int) -> None:
    """Weights, moments and the evaluation behind a batch; without a teacher no alpha is known."""
    states = [state_after(recipe, batch) for recipe in (alone, together)]
    ours, theirs = (state["model"] for state in states)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], **TOLERANCE)
    assert relative_difference(*map(first_moments, states)) < MOMENT_RTOL
    name = "metrics/eval/tau_5" if together.distill.teacher.source == "none" else "metrics/eval/alpha"
    assert metrics(together)[batch][name] == pytest.approx(metrics(alone)[batch][name], rel=1e-5)


SHARDED_TEACHER = TeacherConfig(parallelism="fsdp2")
SMALL = {"freeze_input_embeddings": True, "gradient_clipping": 0.05}  # of a cut head; clipped at every step
WHOLE = {"gradient_clipping": None}  # of tied embeddings; the size of a gradient that is clipped is never seen
TRAININGS = {  # settings of both, settings of two processes, the numbers of processes that go on from each other
    "ddp": (
        {**SMALL, "teacher": {"source": "cache", "contents": "top_k"}},
        {"parallelism": "ddp", "packing": True, "device_train_microbatch_size": 2},
        (2, 1),
    ),
    "ddp, sharded checkpoints": (
        {**WHOLE, "teacher": {"source": "cache", "contents": "hidden"}},
        {"parallelism": "ddp", "checkpoints": "sharded"},
        (2, 1, 2),
    ),
    "fsdp2": ({**WHOLE}, {"parallelism": "fsdp2"}, (2, 1, 2)),
    "fsdp2, sharded checkpoints": (
        {**SMALL},
        {
            "parallelism": "fsdp2",
            "checkpoints": "sharded",
            "packing": True,
            "device_train_microbatch_size": 2,
            "teacher": SHARDED_TEACHER,
        },
        (2, 2, 1, 2),
    ),
    "copies": ({**WHOLE, "teacher": {"source": "none"}}, {"parallelism": "hsdp", "shard_degree": 1}, (2,)),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_two_processes_equal_one_and_each_goes_on_from_the_other(pair, make_run, tiny_target, tmp_path, name):
    """Packed chunks against padded whole logits, too; an evaluation before each checkpoint leaves a head gathered."""
    of_both, of_two, sessions = TRAININGS[name]
    settings = {**ONE_BY_ONE, **of_both}
    if "freeze_input_embeddings" in of_both:
        settings["init"] = cut_draft(tiny_target, tmp_path / "small")
    alone, together = make_run("alone", **settings), changed(make_run("together", **settings), **of_two)
    if alone.distill.teacher.is_cache:
        for recipe in (alone, together):
            cache_stage(Run.of(recipe))
    train(changed(alone, max_duration=f"{len(sessions) + 1}ba", save_interval="1ba"))
    for batch, processes in enumerate(sessions, start=2):
        if processes == 2:
            train_by(pair, together, chunk=7 if together.distill.packing else None, max_duration=f"{batch}ba")
            assert pair.shares == pytest.approx([0.5 if "fsdp2" in name else 1.0] * 2, rel=0.02)
        else:
            train(changed(together, max_duration=f"{batch}ba", parallelism="ddp", teacher=alone.distill.teacher))
        if together.distill.checkpoints == "sharded":
            assert len(shard_bytes(together)) == processes
        assert_same_training(alone, together, batch)
    if "init" not in settings:
        draft = AutoModelForCausalLM.from_pretrained(Path(together.run_dir) / "draft")
        assert draft.lm_head.weight is draft.model.embed_tokens.weight
    elif together.distill.checkpoints == "sharded":
        assert_planted_metadata_never_run(pair, together, tmp_path)


def assert_planted_metadata_never_run(pair, together, tmp_path) -> None:
    newest = find_checkpoints(Path(together.run_dir) / "checkpoints")[-1]
    (newest / "__1_0.distcp").rename(tmp_path / "__1_0.distcp")
    assert "__1_0.distcp" in (damage(newest) or "")
    (tmp_path / "__1_0.distcp").rename(newest / "__1_0.distcp")
    metadata = read_metadata(newest)
    metadata.planner_data = Touch(tmp_path / "mark")
    (newest / METADATA_NAME).write_bytes(pickle.dumps(metadata))
    completed = attempt(pair, together, "distill.max_duration=9ba")
    assert completed.returncode == 2, completed.stderr
    assert completed.stderr.count("posix.system") == 2
    assert not (tmp_path / "mark").exists()


@pytest.mark.usefixtures("warm")
def test_fsdp2_in_one_process_equals_ddp(make_run, device):
    """float32; under gloo on the processor, under NCCL on a GPU."""
    plain, sharded = (make_run(name, max_duration="2ba", **ONE_BY_ONE) for name in ("plain", "sharded"))
    train(plain)
    completed = launched(sharded, 1, parallelism="fsdp2")
    assert completed.returncode == 0, completed.stderr
    assert_same_training(plain, sharded, 2)


def train_on_two_machines(recipe, system: str, *words: str, processes: int = 1) -> None:
    """By the shipped script on two machines that are this one, training in place of a whole run."""
    path = Path(recipe.run_dir) / "recipe.yaml"
    save_recipe(recipe, path)
    script = (ROOT / "recipes" / "launch" / f"{system}.sh").read_text()
    script = script.replace("exec python", r"printf '%s\n'").replace("-m widedraft run", "-m distill.train")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NODES": "2", "GPUS": str(processes)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_free_tcp_port())}

    def command(number: int) -> list[str]:
        command = ["bash", "-c", script, "bash", str(path), *words]
        ranked = {**environment, "NODE_RANK": str(number)}
        return subprocess.run(command, env=ranked, capture_output=True, text=True, check=True).stdout.split()

    machines = [
        Warm(
            [sys.executable, *command(number)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "NODE_RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in (0, 1)
    ]
    said = [machine.communicate()[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said


@pytest.mark.usefixtures("warm")
def test_two_machines_train_to_the_weights_of_one_process(make_run):
    alone, together = (make_run(name, max_duration="2ba", **ONE_BY_ONE) for name in ("alone", "together"))
    train_on_two_machines(together, "torchrun")
    train(alone)
    assert_same_training(alone, together, 2)


@pytest.mark.usefixtures("warm")
def test_copies_of_shards_on_two_machines_of_two_processes_equal_one_process(pair, make_run):
    """Then one process, then two: each goes on from the sharded checkpoint of those before, and exports."""
    alone = make_run("alone", **ONE_BY_ONE)
    together = make_run("together", checkpoints="sharded", parallelism="hsdp", **ONE_BY_ONE)
    train(changed(alone, max_duration="4ba", save_interval="1ba"))
    train_on_two_machines(together, "composer", "distill.max_duration=2ba", processes=2)
    written = [shard_bytes(together)]
    train(changed(together, max_duration="3ba", parallelism="ddp"))
    written.append(shard_bytes(together))
    train_by(pair, together, max_duration="4ba")
    assert pair.shares == pytest.approx([0.5] * 2, rel=0.02)
    written.append(shard_bytes(together))
    for batch in (2, 3, 4):
        assert_same_training(alone, together, batch)
    assert [len(each) for each in written] == [4, 1, 2]
    assert sum(written[0]) == pytest.approx(sum(written[1]), rel=0.1)  # of two copies each number is written once
    exported = (AutoModelForCausalLM.from_pretrained(Path(each.run_dir) / "draft") for each in (alone, together))
    for one, other in zip(*(draft.parameters() for draft in exported), strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


def shard_bytes(recipe) -> list[int]:
    """Of each shard of the newest checkpoint."""
    newest = find_checkpoints(Path(recipe.run_dir) / "checkpoints")[-1]
    return [path.stat().st_size for path in newest.glob("__*.distcp")]


@pytest.mark.usefixtures("warm")
def test_two_processes_share_one_lock_and_others_are_refused(make_run):
    recipe = make_run(max_duration="1ba")
    with owned(Path(recipe.run_dir)):
        held = launched(recipe, 2)  # started by the owner
        os.environ[OWNED_VARIABLE] = ""
        refused = launched(recipe, 2)
        os.environ[OWNED_VARIABLE] = recipe.run_dir
    assert held.returncode == 0, held.stderr
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.count(f"process {os.getpid()} on") == 1


@pytest.mark.usefixtures("warm")
def test_a_user_error_is_said_once(make_run):
    completed = launched(make_run(global_train_batch_size=5), 2)
    assert completed.returncode == 2
    assert (completed.stdout + completed.stderr).count("distill.global_train_batch_size") == 1
    assert "Traceback" not in completed.stdout + completed.stderr


@pytest.mark.usefixtures("warm")
def test_a_full_disk_is_said_once(make_run, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    completed = launched(make_run(max_duration="1ba"), 2)
    assert completed.returncode == 2
    assert (completed.stdout + completed.stderr).count("File too large") == 1
    assert "Traceback" not in completed.stdout + completed.stderr


LOSING_RANK_1 = """
import os, signal, sys
import distill.process
import distill.model
from distill.train import main

loss, losses = distill.model.DistillModel.loss, []

def die_in_the_third_batch(model, outputs, batch):
    losses.append(None)
    if len(losses) == 3 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(model, outputs, batch)

distill.model.DistillModel.loss = die_in_the_third_batch
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("sent", "save_interval", "last"), [("SIGKILL", "1ba", 2), ("SIGTERM", "1dur", 3)])
def test_a_process_that_ends_early_ends_the_others_and_costs_no_checkpoint(
    make_run, tmp_path, sent, save_interval, last
):
    """A lost one costs the batches since the last checkpoint; one that is told to end saves the batch of all."""
    (tmp_path / "losing.py").write_text(LOSING_RANK_1.replace("SIGKILL", sent))
    together = make_run("together", save_interval=save_interval, eval_interval="1dur", max_duration="4ba")
    completed = launched(together, 2, program=(str(tmp_path / "losing.py"),))
    assert completed.returncode not in (0, 2)
    assert (completed.returncode == 128 + signal.SIGTERM) == (sent == "SIGTERM")
    assert completed.stderr.count(AGAIN) == 1
    assert sent == "SIGKILL" or "another process" not in completed.stderr
    assert "Traceback" not in completed.stderr
    saved = [path.name for path in find_checkpoints(Path(together.run_dir) / "checkpoints")]
    assert saved[-1] == f"ep0-ba{last}-rank0.pt"
    assert sent == "SIGKILL" or len(saved) == 1
    train(together)
    assert find_checkpoints(Path(together.run_dir) / "checkpoints")[-1].name.endswith("ba4-rank0.pt")


TWO_TEACHERS = """
import sys
from pathlib import Path
import distill.process
import torch
from composer.utils import dist
from distill.teacher import load_sharded_teacher
from distill.teacher import load_teacher
from distill.trainer import training_device

target = Path(sys.argv[1])
dist.initialize_dist(training_device(), timeout=60)
for dtype in ("float32", "bfloat16"):
    whole, sharded = (load(target, dtype=dtype, device="cpu") for load in (load_teacher, load_sharded_teacher))
    mine, all_of_it = (sum(each.numel() for each in some) for some in (
        [parameter.to_local() for parameter in sharded.model.parameters()], sharded.model.parameters()))
    assert all_of_it == sum(parameter.numel() for parameter in whole.model.parameters()), all_of_it
    assert mine == all_of_it / 2, (mine, all_of_it)
    assert sharded.vocab_size == whole.vocab_size
    assert not any(parameter.requires_grad for parameter in sharded.model.parameters())
    draw = torch.Generator().manual_seed(dist.get_global_rank())  # each process its own batch
    for _ in range(2):
        batch = {"input_ids": torch.randint(0, 200, (3, 9), generator=draw)}
        batch["keep"] = torch.rand(3, 9, generator=draw) < 0.5
        said, expected = (teacher.rows(batch, vocab_size=200).logits(slice(None)) for teacher in (sharded, whole))
        assert torch.equal(said, expected), (said - expected).abs().max()
"""


@pytest.mark.usefixtures("warm")
def test_a_sharded_teacher_says_what_a_whole_one_says(tiny_target, tmp_path):
    (tmp_path / "teachers.py").write_text(TWO_TEACHERS)
    completed = launch(str(tiny_target), program=(str(tmp_path / "teachers.py"),))
    assert completed.returncode == 0, completed.stderr

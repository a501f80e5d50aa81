"""A process whose memory is capped by the system: too little for a target that is whole, enough for one in layers."""

import hashlib
import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from architectures.hub import read_config
from architectures.pruning.importance import activation_scores
from architectures.pruning.plan import Scores, plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from architectures.settings import Holding
from architectures.shapes import Shape
from eval import large_targets
from eval.large_targets import access_to, load_target
from eval.replay import response_logits

ROOT = Path(__file__).parents[3]
SIZES = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 16, "num_attention_heads": 8}
CAP_MIB = 130  # above what the process has before it opens the target, which has 197 MiB: a layer has 12
TEXTS = [([5, 9, 17, 40], [7, 8, 9, 10]), ([6, 11], list(range(20, 84)))]
CAPPED = """
import json, sys
from functools import partial

import torch
import transformers.models.llama.modeling_llama

from eval import large_targets as shell
from eval import models as loading
from eval.large_targets import Pass, run_passes
from tests.eval.targets.test_capped import TEXTS, response_logits, cap_here, cut, digest, opened

loading.slow_type = shell.slow_type = lambda: None  # the same kernels as the fixture _same_kernels takes
folder, placement, cap_mib, out = json.loads(sys.argv[1])
cap_here(cap_mib)
model = opened(folder, placement)
passes = [Pass(partial(response_logits, model, *text), 1, sum(map(len, text))) for text in TEXTS]
print([digest(logits) for logits in run_passes(model, passes)])
cut(model, folder, out)
"""


def cap_here(cap_mib):
    """Cap the private memory of this process: so much beyond what it has."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    limit = int(status["VmData"].split()[0]) * 1024 + (cap_mib << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def opened(folder, placement):
    return load_target(Path(folder), dtype="float32", holding=Holding(placement), device="cpu")


def digest(logits):
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()


def cut(model, folder, out):
    """Score the parts of a target, and cut a draft out of it."""
    source = Path(folder)
    ids_ST = torch.randint(3, 260, (2, 128), generator=torch.Generator().manual_seed(7))
    scores = activation_scores(model, ids_ST, access=access_to(model, source))
    wanted = ArchitectureConfig(layers=2, intermediate=704, method="block_influence")
    plan = plan_pruning(Shape.from_config(read_config(source)), wanted, Scores(scores))
    prune_checkpoint(source, plan, Path(out))


def capped(folder, placement, out):
    """What a process did with a target under a cap of its private memory, set with setrlimit."""
    argument = json.dumps([str(folder), placement, CAP_MIB, str(out)])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", CAPPED, argument], env=environment, capture_output=True, text=True, check=False
    )


@contextmanager
def one_thread():
    """As there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.usefixtures("warm")
def test_a_cap_that_kills_the_whole_target_lets_the_one_in_layers_say_and_be_cut_to_the_same(make_checkpoint, tmp_path):
    target = make_checkpoint(**SIZES, num_key_value_heads=8, head_dim=64)
    assert (target / "model.safetensors").stat().st_size > CAP_MIB << 20
    killed = capped(target, "whole", tmp_path / "none")
    assert killed.returncode != 0
    assert "allocate memory" in killed.stderr
    assert not (tmp_path / "none").exists()
    layered = capped(target, "layers", tmp_path / "layers")
    assert layered.returncode == 0, layered.stderr
    with one_thread():
        whole = opened(target, "whole")
        assert layered.stdout.strip() == str([digest(response_logits(whole, *text)) for text in TEXTS])
        cut(whole, target, tmp_path / "whole")
    assert files(tmp_path / "layers") == files(tmp_path / "whole")


def test_processes_of_a_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(large_targets, "left_by_cgroup", lambda: 6000)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert large_targets.free_bytes(torch.device("cpu")) == 6000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert large_targets.free_bytes(torch.device("cpu")) == 2000

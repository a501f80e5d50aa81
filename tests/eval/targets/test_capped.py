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
from architectures.importance.activation_scores import activation_scores
from architectures.pruning.plan import Scores, plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from architectures.settings import Holding
from architectures.shapes import Shape
from eval.large_targets import access_to, load_target
from eval.models import load_model
from eval.replay import answer_logits

ROOT = Path(__file__).parents[3]
SIZES = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 24, "num_attention_heads": 8}
CAP_MIB = 190  # above what the process has before it opens the target, which has 295 MiB: a layer has 12
CUT_CAP_MIB = 110  # likewise; the sums and their float64 take more than layers alone
CAPPED = """
import hashlib, json, sys
from functools import partial
from contextlib import nullcontext
from pathlib import Path

import torch
import transformers.models.llama.modeling_llama

from architectures.settings import Holding
from eval.replay import answer_logits
from eval import models as loading
from eval import large_targets as shell
from eval.large_targets import load_target
from eval.large_targets import Pass, run_passes
from tests.eval.targets.test_capped import cap_here

loading.slow_type = shell.slow_type = lambda: None  # the same kernels as the fixture _same_kernels takes
folder, placement, cap_mib = json.loads(sys.argv[1])
texts = [([5, 9, 17, 40], [7, 8, 9, 10]), ([6, 11], list(range(20, 84)))]
cap_here(cap_mib)
model = load_target(Path(folder), dtype="float32", holding=Holding(placement), device="cpu")
passes = [Pass(partial(answer_logits, model, *text), 1, sum(map(len, text))) for text in texts]
print([hashlib.sha256(logits.numpy().tobytes()).hexdigest() for logits in run_passes(model, passes)])
"""


CUT = """
import json, sys

from tests.eval.targets.test_capped import cap_here, cut

folder, placement, cap_mib, out = json.loads(sys.argv[1])
cap_here(cap_mib)
cut(folder, placement, out)
"""


def cap_here(cap_mib):
    """Cap the private memory of this process: so much beyond what it has."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    limit = int(status["VmData"].split()[0]) * 1024 + (cap_mib << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def cut(folder, placement, out):
    """Score the parts of a target, and cut a draft out of it."""
    source = Path(folder)
    model = load_target(source, dtype="float32", holding=Holding(placement), device="cpu")
    ids_ST = torch.randint(3, 260, (2, 128), generator=torch.Generator().manual_seed(7))
    scores = activation_scores(model, ids_ST, access=access_to(model, source))
    wanted = ArchitectureConfig(layers=2, intermediate=704, method="block_influence")
    plan = plan_pruning(Shape.from_config(read_config(source)), wanted, Scores(scores))
    prune_checkpoint(source, plan, Path(out))


@pytest.fixture(scope="module")
def large_target(make_checkpoint):
    return make_checkpoint(**SIZES, num_key_value_heads=8, head_dim=64)


def capped(folder, placement, cap_mib, *more, script=CAPPED):
    """What a process did with a target under a cap of its private memory, set with setrlimit."""
    argument = json.dumps([str(folder), placement, cap_mib, *more])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", script, argument], env=environment, capture_output=True, text=True, check=False
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


def whole_digests(folder):
    """What it says here, where there is memory."""
    texts = [([5, 9, 17, 40], [7, 8, 9, 10]), ([6, 11], list(range(20, 84)))]
    with one_thread():
        model = load_model(folder, dtype="float32", device="cpu")
        return [hashlib.sha256(answer_logits(model, *text).numpy().tobytes()).hexdigest() for text in texts]


def test_a_cap_that_kills_the_whole_target_lets_the_one_in_layers_say_the_same(large_target):
    assert (large_target / "model.safetensors").stat().st_size > CAP_MIB << 20
    killed = capped(large_target, "whole", CAP_MIB)
    assert killed.returncode != 0
    assert "can't allocate memory" in killed.stderr or "Cannot allocate memory" in killed.stderr
    layered = capped(large_target, "layers", CAP_MIB)
    assert layered.returncode == 0, layered.stderr
    assert layered.stdout.strip() == str(whole_digests(large_target))


def test_a_draft_is_cut_out_of_it_under_such_a_cap(large_target, tmp_path):
    killed = capped(large_target, "whole", CUT_CAP_MIB, str(tmp_path / "none"), script=CUT)
    assert "an't allocate memory" in killed.stderr or "annot allocate memory" in killed.stderr
    assert not (tmp_path / "none").exists()
    cut_there = capped(large_target, "layers", CUT_CAP_MIB, str(tmp_path / "layers"), script=CUT)
    assert cut_there.returncode == 0, cut_there.stderr
    with one_thread():
        cut(large_target, "whole", tmp_path / "whole")
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / placement).iterdir()} for placement in ("layers", "whole")
    )
    assert ours == theirs

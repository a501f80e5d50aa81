"""A process whose memory is capped by the system: too little for a target that is whole, enough for one in layers."""

import hashlib
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from eval.acceptance.replay import answer_logits
from eval.models.loading import load_model
from eval.targets import shell

ROOT = Path(__file__).parents[3]
SIZES = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 24, "num_attention_heads": 8}
CAP_MIB = 190  # above what the process has before it opens the target, which has 295 MiB: a layer has 12
CAPPED = """
import hashlib, json, resource, sys
from functools import partial
from contextlib import nullcontext
from pathlib import Path

import torch
import transformers.models.llama.modeling_llama

from architectures.settings.holding import Holding
from eval.acceptance.replay import answer_logits
from eval.targets.loading import load_target
from eval.targets.passes import Pass, run_passes

folder, placement, cap_mib = json.loads(sys.argv[1])
texts = [([5, 9, 17, 40], [7, 8, 9, 10]), ([6, 11], list(range(20, 84)))]
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
limit = int(status["VmData"].split()[0]) * 1024 + (cap_mib << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
model = load_target(Path(folder), dtype="float32", holding=Holding(placement), device="cpu")
passes = [Pass(partial(answer_logits, model, *text), 1, sum(map(len, text))) for text in texts]
print([hashlib.sha256(logits.numpy().tobytes()).hexdigest() for logits in run_passes(model, passes)])
"""


@pytest.fixture(scope="module")
def large_target(make_checkpoint):
    return make_checkpoint(**SIZES, num_key_value_heads=8, head_dim=64)


def capped(folder, placement, cap_mib):
    """What a process did with a target under a cap of its private memory, set with setrlimit."""
    argument = json.dumps([str(folder), placement, cap_mib])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", CAPPED, argument], env=environment, capture_output=True, text=True, check=False
    )


def whole_digests(folder):
    """What it says here, where there is memory, with one thread as there."""
    texts = [([5, 9, 17, 40], [7, 8, 9, 10]), ([6, 11], list(range(20, 84)))]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = load_model(folder, dtype="float32", device="cpu")
        return [hashlib.sha256(answer_logits(model, *text).numpy().tobytes()).hexdigest() for text in texts]
    finally:
        torch.set_num_threads(threads)


def test_a_cap_that_kills_the_whole_target_lets_the_one_in_layers_say_the_same(large_target):
    assert (large_target / "model.safetensors").stat().st_size > CAP_MIB << 20
    killed = capped(large_target, "whole", CAP_MIB)
    assert killed.returncode != 0
    assert "can't allocate memory" in killed.stderr or "Cannot allocate memory" in killed.stderr
    layered = capped(large_target, "layers", CAP_MIB)
    assert layered.returncode == 0, layered.stderr
    assert layered.stdout.strip() == str(whole_digests(large_target))


def test_a_cap_that_fits_nothing_is_refused_and_not_run_into(large_target):
    refused = capped(large_target, "layers", 8)
    assert refused.returncode != 0
    assert "one layer at a time it takes at least" in refused.stderr
    assert "can be taken here" in refused.stderr
    assert "Raise target.device_memory_gib" in refused.stderr


def test_weights_get_no_memory_even_before_accelerate_takes_it_back(make_checkpoint, monkeypatch):
    monkeypatch.setattr(shell, "init_empty_weights", lambda *, include_buffers: nullcontext(include_buffers))
    model = shell.without_weights(make_checkpoint(), dtype="float32")
    assert all(parameter.is_meta for parameter in model.parameters() if parameter.dim() > 1)
    assert not any(buffer.is_meta for buffer in model.buffers())

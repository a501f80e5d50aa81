"""The whole of benchmarks/gpu.sh at tiny sizes on a processor, so that nothing in it rots until a GPU comes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as runner
from benchmarks.gpu import stage_process
from benchmarks.gpu.stages import STAGES

ROOT = Path(__file__).parents[3]
ELSEWHERE = {"tests", "vllm", "vllm_steps", "pair", "pair_certificate"}  # a GPU, or an environment with vLLM


def run_here(words: list[str], _limit_s: float) -> int:
    """A stage in this process, which has imported what one of its own would import."""
    module, *files = words[words.index("benchmarks.gpu.stage_process") + 1 :]
    stage_process.main(module, *map(Path, files))
    return 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_stage_runs_on_a_processor(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(runner, "run_for", run_here)
    monkeypatch.delenv("WIDEDRAFT_VLLM", raising=False)
    out = tmp_path / "out"
    assert runner.main(["--size", "tiny", "--out", str(out), "--keep", str(tmp_path / "keep")]) == 0
    [file] = out.glob("*.json")
    record = json.loads(file.read_text(encoding="utf-8"))
    assert list(record["stages"]) == list(STAGES)
    for name, stage in record["stages"].items():
        assert stage["status"] == ("skipped" if name in ELSEWHERE else "done"), stage["reason"]
        assert not [row for row in stage["rows"] if "failed" in row]
        assert name in ELSEWHERE or [row for row in stage["rows"] if "skipped" not in row]
    assert str(tmp_path) not in file.read_text(encoding="utf-8")


@pytest.mark.slow  # the runner and the stage import torch anew
def test_the_script_runs_a_stage_in_a_process_of_its_own(tmp_path):
    there = {"PYTHON": sys.executable, "WIDEDRAFT_GPU": str(tmp_path / "keep"), "OMP_NUM_THREADS": "1"}
    there["WIDEDRAFT_CARRY"] = str(tmp_path / "nothing")
    words = ["benchmarks/gpu.sh", "--size", "tiny", "--only", "machine", "--out", str(tmp_path / "out")]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | there, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [file] = (tmp_path / "out").glob("*.json")
    assert json.loads(file.read_text(encoding="utf-8"))["stages"]["machine"]["status"] == "done"

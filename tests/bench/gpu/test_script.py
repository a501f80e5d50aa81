"""The whole of bench/gpu.sh at tiny sizes on a processor, so that nothing in it rots until a GPU comes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.stages import STAGES
from distill.expected_time.figures import load_figures

ROOT = Path(__file__).parents[3]
ON_A_GPU_ALONE = {"tests"}


@pytest.mark.slow  # every stage imports torch and Composer anew
@pytest.mark.timeout(900)
def test_every_stage_runs_on_a_processor(tmp_path):
    out = tmp_path / "out"
    there = {"PYTHON": sys.executable, "WIDEDRAFT_GPU": str(tmp_path / "keep"), "OMP_NUM_THREADS": "1"}
    words = ["bench/gpu.sh", "--size", "tiny", "--out", str(out)]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | there, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    [file] = out.glob("*.json")
    record = json.loads(file.read_text(encoding="utf-8"))
    assert list(record["stages"]) == list(STAGES)
    for name, stage in record["stages"].items():
        assert stage["status"] == ("skipped" if name in ON_A_GPU_ALONE else "done"), stage["reason"]
        assert not [row for row in stage["rows"] if "failed" in row]
        assert name in ON_A_GPU_ALONE or [row for row in stage["rows"] if "skipped" not in row]
    assert str(tmp_path) not in file.read_text(encoding="utf-8")
    require_hours_can_be_read(record, tmp_path / "read.json")


def require_hours_can_be_read(record: dict, file: Path) -> None:
    """`widedraft check` finds rows of every stage that it derives hours from."""
    file.write_text(json.dumps(record | {"size": "laptop"}), encoding="utf-8")  # a tiny one measures nothing
    figures = load_figures(file)
    assert all((figures.machine, figures.steps, figures.answers, figures.distillation))

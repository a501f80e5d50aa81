"""recipes/launch: each script parses and starts the launcher on the second of two machines with its ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

LAUNCH = Path(__file__).parents[1] / "recipes" / "launch"
WRITER = f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
PROGRAMS = {  # in place of those of each system
    "python": WRITER,
    "scontrol": "#!/bin/bash\nprintf 'gpu-03\\ngpu-17\\n'\n",
    "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexport SLURM_NODEID=1\nexec "$@"\n',
    "mountpoint": "#!/bin/bash\n",
}
BY_HAND = {"NODES": "2", "GPUS": "8", "NODE_RANK": "1", "MASTER_ADDR": "gpu-03"}
ENVIRONMENT = {  # as each system sets it on its second machine
    "composer.sh": BY_HAND,
    "torchrun.sh": BY_HAND,
    "slurm.sh": {"SLURM_JOB_NODELIST": "gpu-[03,17]", "SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_NUM_NODES": "2"},
    "skypilot.yaml": {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "gpu-03\ngpu-17",
        "RECIPE": "my.yaml",
        "RUN_DIR": "/shared/a b",
    },
    "kubernetes.yaml": {"JOB_COMPLETION_INDEX": "1", "NODES": "2", "GPUS": "8"},
}


def shell_of(path: Path) -> str:
    if path.name == "skypilot.yaml":
        return yaml.safe_load(path.read_text())["run"]
    if path.name == "kubernetes.yaml":
        _, job = yaml.safe_load_all(path.read_text())
        return job["spec"]["template"]["spec"]["containers"][0]["args"][0]
    return path.read_text()


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_second_machine_starts_its_ranks(name, tmp_path):
    for program, text in PROGRAMS.items():
        (tmp_path / program).write_text(text)
        (tmp_path / program).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-c", shell_of(LAUNCH / name), "bash", "my.yaml", "run_dir=/shared/a b"]
    done = subprocess.run(command, env={"PATH": path, **ENVIRONMENT[name]}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = json.loads(done.stdout)
    flags = {word: words[place + 1] for place, word in enumerate(words) if word.startswith("--")}
    first = "widedraft-0.widedraft" if name == "kubernetes.yaml" else "gpu-03"
    if name == "torchrun.sh":
        assert flags == {
            "--nnodes": "2",
            "--nproc-per-node": "8",
            "--node-rank": "1",
            "--master-addr": first,
            "--master-port": "29500",
        }
    else:
        assert flags == {
            "--nproc": "8",
            "--world_size": "16",
            "--node_rank": "1",
            "--base_rank": "8",
            "--master_addr": first,
            "--master_port": "29500",
        }
    assert words[words.index("widedraft") :][:3] == ["widedraft", "run", "my.yaml"]
    if name != "kubernetes.yaml":
        assert words[-1] == "run_dir=/shared/a b"


def test_every_script_is_tested():
    assert {path.name for path in LAUNCH.iterdir()} == set(ENVIRONMENT)

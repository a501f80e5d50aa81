"""Scripts that start a run on several machines: they parse, and say on every machine who it is and whom it reaches.

What the systems set is set here by programs of their names, and what is started is a python that writes down its words.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from distill.commands.launch import LaunchSettings
from distill.launching.systems import SYSTEMS
from widedraft import main

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "llama2-7b-wide-796m.yaml"
OWN = {
    "skypilot": ("--gpu", "H100", "--setup", "pip install ."),
    "kubernetes": ("--image", "registry/widedraft:1", "--volume", "shared"),
}
WRITER = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
names = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PYTHONSAFEPATH", "USE_LIBUV")
told = {{"words": sys.argv[1:], **{{name: os.environ.get(name) for name in names}}}}
Path(os.environ["TOLD"]).write_text(json.dumps(told))
"""
HOSTS = ["gpu-03", "gpu-17"]
SAID: dict[str, Any] = {"capture_output": True, "text": True}


@pytest.fixture
def printed(capsys):
    """printed(system, *words) -> the script of a recipe of 64 sequences a step."""

    def script(system, *words):
        few = [] if "--nodes" in words else ["--nodes", "2"]
        code = main(["launch", str(RECIPE), "--print", system, *few, *OWN.get(system, ()), *words])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return script


@pytest.fixture
def refused(capsys):
    def message(*words):
        assert main(["launch", str(RECIPE), *words]) == 2
        captured = capsys.readouterr()
        assert not captured.out
        return captured.err

    return message


@pytest.fixture
def told(tmp_path):
    """told(script, **environment) -> the words and variables that a script's python is started with."""
    programs = tmp_path / "bin"
    programs.mkdir()

    def program(name, text):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    program("python", WRITER)
    program("scontrol", "#!/bin/bash\n[ \"$*\" = 'show hostnames gpu-[03,17]' ] && printf 'gpu-03\\ngpu-17\\n'\n")
    program("srun", '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexport SLURM_NODEID=1\nexec "$@"\n')
    program("mountpoint", "#!/bin/bash\n[ \"$*\" = '-q /shared' ]\n")

    def run(script, **environment):
        file = tmp_path / "script.sh"
        file.write_text(script)
        path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TOLD": str(tmp_path / "told.json")}
        completed = subprocess.run(["bash", str(file)], env={**path, **environment}, check=False, **SAID)
        assert completed.returncode == 0, completed.stderr
        return json.loads((tmp_path / "told.json").read_text())

    return run


def shell_of(system, script):
    """What is run on a node."""
    if system == "skypilot":
        return yaml.safe_load(script)["run"]
    if system == "kubernetes":
        return pod(script)["containers"][0]["args"][0]
    return script


def pod(script):
    _, job = yaml.safe_load_all(script)
    return job["spec"]["template"]["spec"]


ENVIRONMENT = {  # as each system has it on its second machine
    "slurm": {"SLURM_JOB_NODELIST": "gpu-[03,17]"},
    "skypilot": {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "\n".join(HOSTS)},
    "kubernetes": {"JOB_COMPLETION_INDEX": "1"},
    "torchrun": {"NODE_RANK": "1", "MASTER_ADDR": "gpu-03"},
    "composer": {"NODE_RANK": "1", "MASTER_ADDR": "gpu-03"},
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_second_machine_is_told_its_rank_the_first_one_and_the_run(system, printed, told):
    value = "run_dir=/shared/a b's"
    script = printed(system, value, "distill.optimizer.lr=3e-4", "--port", "29777")
    subprocess.run(["bash", "-n"], input=shell_of(system, script), text=True, check=True)
    seen = told(shell_of(system, script), **ENVIRONMENT[system])
    first = "widedraft-llama2-7b-wide-796m-0.widedraft-llama2-7b-wide-796m" if system == "kubernetes" else "gpu-03"
    assert (seen["NODE_RANK"], seen["MASTER_ADDR"], seen["MASTER_PORT"]) == ("1", first, "29777")
    assert seen["PYTHONSAFEPATH"] == "1"
    launcher = {**flags(seen["words"]), "words": seen["words"][seen["words"].index("widedraft") :]}
    recipe = os.path.relpath(RECIPE) if system == "skypilot" else str(RECIPE)
    assert launcher["words"] == ["widedraft", "run", recipe, value, "distill.optimizer.lr=3e-4"]
    wanted = {"nnodes": "2", "nproc-per-node": "8", "node-rank": "1", "master-addr": first, "master-port": "29777"}
    if system != "torchrun":
        names = ("nproc", "world_size", "node_rank", "base_rank", "master_addr", "master_port")
        wanted = dict(zip(names, ("8", "16", "1", "8", first, "29777"), strict=True))
    assert {name: value for name, value in launcher.items() if name != "words"} == wanted


def flags(words):
    """What a launcher is told, by name."""
    return {name.removeprefix("--"): words[place + 1] for place, name in enumerate(words) if name.startswith("--")}


def test_composer_takes_those_words(printed, told, monkeypatch):
    from composer.cli import launcher

    seen = told(printed("composer"), **ENVIRONMENT["composer"])
    assert seen["words"][:2] == ["-m", "composer"]
    monkeypatch.setattr(sys, "argv", ["composer", *seen["words"][2:]])
    parsed = launcher._parse_args()
    assert (parsed.nproc, parsed.world_size, parsed.node_rank, parsed.base_rank) == (8, 16, 1, 8)
    assert (parsed.module_mode, parsed.training_script) == (True, "widedraft")
    assert parsed.training_script_args == ["run", str(RECIPE)]


def test_torchrun_shares_the_cores_where_it_would_set_one_thread(printed, told):
    seen = told(printed("torchrun", "--nodes", "2", "--gpus-per-node", "1"), **ENVIRONMENT["torchrun"])
    assert int(seen["OMP_NUM_THREADS"]) == len(os.sched_getaffinity(0))
    seen = told(printed("torchrun"), **ENVIRONMENT["torchrun"], OMP_NUM_THREADS="3")
    assert (seen["OMP_NUM_THREADS"], seen["USE_LIBUV"]) == ("3", "0")


@pytest.mark.parametrize("system", ["torchrun", "composer"])
def test_a_script_of_hand_wants_to_know_its_machine(system, printed):
    completed = subprocess.run(["bash"], input=printed(system), env={"PATH": os.environ["PATH"]}, check=False, **SAID)
    assert completed.returncode != 0
    assert "NODE_RANK: number of this machine" in completed.stderr


def test_slurm_reads_every_line_of_its_header(printed):
    lines = printed("slurm", "--gpus-per-node", "4").splitlines()
    header = lines[1 : next(place for place, line in enumerate(lines) if not line.startswith("#SBATCH") and place)]
    assert lines[0] == "#!/bin/bash"
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in header)
    assert {
        "#SBATCH --mem=0",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --requeue",
    } <= {*header}
    assert not any(line.startswith("#SBATCH") for line in lines[1 + len(header) :])


def test_a_setup_goes_before_on_every_node(printed, told):
    for system in ("slurm", "torchrun", "composer", "kubernetes"):
        script = printed(system, "--setup", "export MASTER_PORT=4321")
        assert told(shell_of(system, script), **ENVIRONMENT[system])["MASTER_PORT"] == "4321"
    assert yaml.safe_load(printed("skypilot"))["setup"] == "pip install .\n"
    assert yaml.safe_load(printed("skypilot", "--setup", "\tpip install ."))["setup"] == "pip install .\n"


def test_a_setup_may_read_variables_that_nobody_set(printed, told):
    """As what activates an environment does; the script's own are still asked for."""
    for system in ("slurm", "torchrun", "composer", "kubernetes"):
        script = printed(system, "--setup", "export MASTER_PORT=43$NOT_SET_ANYWHERE")
        assert told(shell_of(system, script), **ENVIRONMENT[system])["MASTER_PORT"] == "43"
        assert "set -u\n" in shell_of(system, script)


@pytest.fixture
def task_of(capsys):
    """task_of(*words) -> code, task of SkyPilot, and what was said."""

    def task(*words):
        code = main(["launch", *words, "--print", "skypilot", "--nodes", "1", *OWN["skypilot"]])
        captured = capsys.readouterr()
        return code, yaml.safe_load(captured.out), captured.err

    return task


def test_a_task_of_skypilot_names_what_its_nodes_have(task_of, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    for recipe in (tmp_path / "above.yaml", tmp_path / "here" / "mine.yaml"):
        recipe.write_text(RECIPE.read_text())
    monkeypatch.chdir(tmp_path / "here")
    shared = "widedraft run mine.yaml run_dir=/shared/llama2-7b-wide-796m"
    for words, said in (
        (("mine.yaml",), shared),
        ((str(tmp_path / "here" / "mine.yaml"),), shared),
        (("mine.yaml", "--debug"), f"{shared} --debug"),
        (("mine.yaml", "run_dir=/shared/x"), "widedraft run mine.yaml run_dir=/shared/x"),
    ):
        code, task, err = task_of(*words)
        assert (code, task["run"].strip().rpartition(" -m ")[2]) == (0, said), err
    for words, said in (
        (("../above.yaml",), "../above.yaml: is not in the working folder"),
        (("mine.yaml", "run_dir=runs/x"), "run_dir is runs/x, which is in the copy that each node has"),
    ):
        code, task, err = task_of(*words)
        assert (code, task) == (2, None)
        assert said in err


def test_a_run_folder_of_the_recipe_itself_stays(task_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"run_dir: /shared/of/mine\n{RECIPE.read_text()}")
    assert task_of("mine.yaml")[1]["run"].strip().endswith(" -m widedraft run mine.yaml")


def test_a_task_of_skypilot(printed, told):
    task = yaml.safe_load(printed("skypilot", "--volume", "drafts", "--nodes", "4", "--gpus-per-node", "4"))
    assert task["num_nodes"] == 4
    assert task["resources"] == {"accelerators": "H100:4"}
    assert task["volumes"] == {"/shared": "drafts"}
    assert set(task) == {"name", "num_nodes", "resources", "workdir", "volumes", "setup", "run"}
    seen = told(task["run"], **{**ENVIRONMENT["skypilot"], "SKYPILOT_NUM_NODES": "4"})
    assert seen["words"][-1] == "run_dir=/shared/llama2-7b-wide-796m"
    wrong = {**os.environ, **ENVIRONMENT["skypilot"]}
    completed = subprocess.run(["bash"], input=task["run"], env=wrong, check=False, **SAID)
    assert (completed.returncode, completed.stderr) == (2, "num_nodes must be 4\n")


def test_a_job_of_kubernetes(printed):
    script = printed("kubernetes", "--nodes", "4", "--gpus-per-node", "4")
    service, job = yaml.safe_load_all(script)
    name = job["metadata"]["name"]
    assert (service["kind"], service["apiVersion"], service["spec"]["clusterIP"]) == ("Service", "v1", "None")
    assert service["metadata"]["name"] == name == pod(script)["subdomain"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    spec = job["spec"]
    assert (job["kind"], job["apiVersion"]) == ("Job", "batch/v1")
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    container = pod(script)["containers"][0]
    mistakes, disruptions = spec["podFailurePolicy"]["rules"]
    assert mistakes["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [2]}
    assert (mistakes["action"], disruptions["action"]) == ("FailJob", "Ignore")
    assert pod(script)["restartPolicy"] == "Never"  # which a policy of failures demands
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert pod(script)["volumes"][0]["persistentVolumeClaim"] == {"claimName": "shared"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in pod(script)["volumes"]}
    assert not re.search(r"\$\(\w+\)|\$\$", container["args"][0])  # Kubernetes would put values there


def test_names_are_those_that_hosts_may_have(printed):
    long = "A.Draft_" + "x" * 90
    for system in ("slurm", "skypilot", "kubernetes"):
        name = re.search(r"(?:--job-name=|name: )(\S+)", printed(system, f"run_name={long}"))[1]  # pyright: ignore[reportOptionalSubscript]
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])", name)
        assert name.startswith("widedraft-a-draft-x")


def test_one_machine_is_a_cluster_too(printed, told):
    script = printed("composer", "--nodes", "1")
    seen = told(script, NODE_RANK="0", MASTER_ADDR="localhost")
    assert (flags(seen["words"])["world_size"], flags(seen["words"])["base_rank"]) == ("8", "0")


MASKS = ("architecture.method=learned_masks", "architecture.masks.global_train_batch_size=8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--print", "slurm", "--nodes", "3"),
            "got 64 and 24. Change it, or --nodes and --gpus-per-node; of fewer processes 16 fit.",
        ),
        (("--print", "slurm", "--nodes", "16"), "got 64 and 128. Change it, or --nodes and --gpus-per-node; of fewer"),
        (("--print", "kubernetes", "--nodes", "2", "--volume", "a"), "--print kubernetes needs --image"),
        (("--print", "kubernetes", "--nodes", "2", "--image", "a"), "--print kubernetes needs --volume"),
        (("--print", "skypilot", "--nodes", "2", "--setup", "a"), "--print skypilot needs --gpu"),
        (("--print", "skypilot", "--nodes", "2", "--gpu", "H100"), "--print skypilot needs --setup"),
        (
            ("--print", "slurm", "--nodes", "2", "--volume", "a"),
            "--volume is for skypilot and kubernetes; --print slurm",
        ),
        (("--print", "composer", "--nodes", "2", "--image", "a"), "--image is for kubernetes; --print composer has no"),
        (("--print", "slurm", "--nodes", "2", "run_dir=$HOME/x"), "a launcher replaces what stands behind a $"),
        (
            ("--print", "slurm", "--nodes", "2", "distill.loggers.wandb.init_kwargs.api_key=abc"),
            "distill.loggers.wandb.init_kwargs.api_key=***: looks like a secret, which the script would keep.",
        ),
        (
            ("--print", "slurm", "--nodes", "2", "distill.parallelism=hsdp", "distill.shard_degree=3"),
            "distill.shard_degree must divide the number of processes, got 3 and 16.",
        ),
        (("--print", "slurm", "--nodes", "0"), "--nodes must be"),
        (
            ("--print", "slurm", "--nodes", "2", "target.placement=spread", "distill.teacher={source: cache}"),
            "target.placement is spread, which takes all",
        ),
        (("--print", "slurm", "--nodes", "2", "--setup", "a\nb"), "--setup must"),
        (("--print", "skypilot", "--nodes", "2", "--gpu", "H100", "--setup", "a\u2028b"), "--setup must"),
        (("--print", "kubernetes", "--nodes", "2", "--image", "a", "--volume", "  "), "--volume must"),
        (("--print", "slurm", "--nodes", "2", "run_dir=runs/a\x85b"), "a script is of lines"),
    ],
)
def test_what_no_script_can_start_is_refused(words, said, refused):
    assert said in refused(*words)


def test_masks_and_requests_are_shared_too(tmp_path, capsys):
    recipe = tmp_path / "masks.yaml"
    text = {"domains": [{"name": "letters", "path": "letters.txt"}], "max_seq_len": 128}
    recipe.write_text(
        yaml.safe_dump(
            {
                "run_name": "masks",
                "target": {"path": "somewhere"},
                "architecture": {"layers": 2, "method": "learned_masks", "masks": {"global_train_batch_size": 8}},
                "data": {"self_written_prompts": 9},
                "text": text,
                "distill": {"global_train_batch_size": 32},
            }
        )
    )
    assert main(["launch", str(recipe), "--print", "composer", "--nodes", "2"]) == 2
    assert "architecture.masks.global_train_batch_size must be a multiple of" in capsys.readouterr().err
    assert main(["launch", str(recipe), "--print", "composer", "--nodes", "2", "--gpus-per-node", "4"]) == 0


def test_every_system_that_is_offered_has_a_script():
    assert set(LaunchSettings.model_json_schema()["properties"]["print"]["enum"]) == set(SYSTEMS)

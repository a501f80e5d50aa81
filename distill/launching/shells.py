"""Scripts of a shell: to be run by hand on every machine, or given to SLURM. No torch."""

from distill.launching.launch import Launch, quoted
from distill.launching.lines import SAFE_PATH, composer_line, setup_lines, store_line, threads_line, torchrun_line

BY_HAND = """\
# Run it on every machine, in the same folder of a disk that all of them share, which recipe, prompts, target and run
# are on: NODE_RANK=0 MASTER_ADDR=host bash FILE, with 0 on the machine that is MASTER_ADDR, 1 on the next, and so on.
# After an interruption run it again on all of them: it continues."""

OF_SLURM = """\
# sbatch FILE, in a folder of a disk that all nodes share, which recipe, prompts, target and run are on, with the
# environment active that has widedraft. Partition, account and time are options of sbatch. A job that was preempted, or
# lost a node, is queued again and continues; a mistake of the recipe (exit code 2) ends it."""


def by_hand(launch: Launch, *lines: str) -> str:
    """A script that is told by its environment which machine it is on."""
    return "\n".join(
        [
            "#!/bin/bash",
            BY_HAND,
            "set -euo pipefail",
            ': "${NODE_RANK:?number of this machine, from 0 on}" "${MASTER_ADDR:?name or address of machine 0}"',
            f'export NODE_RANK MASTER_ADDR MASTER_PORT="${{MASTER_PORT:-{launch.port}}}"',
            SAFE_PATH,
            *setup_lines(launch),
            *lines,
            "",
        ]
    )


def composer_script(launch: Launch) -> str:
    return by_hand(launch, composer_line(launch))


def torchrun_script(launch: Launch) -> str:
    return by_hand(launch, threads_line(launch), store_line(), torchrun_line(launch))


def slurm_script(launch: Launch) -> str:
    """A batch job with one task on each node, which is Composer's launcher.

    --cpu-bind=none: a task is bound to a core on some clusters, and this one starts all processes of its node.
    --mem=0: all of a node's memory, which --exclusive alone does not give.
    """
    on_a_node = f'export NODE_RANK="$SLURM_NODEID"\n{composer_line(launch)}'
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name={launch.job_name}",
            f"#SBATCH --nodes={launch.nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={launch.processes}",
            "#SBATCH --exclusive",
            "#SBATCH --mem=0",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            f"#SBATCH --output={launch.job_name}-%j.log",
            OF_SLURM,
            "set -euo pipefail",
            'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            f'export MASTER_ADDR="${{hosts[0]}}" MASTER_PORT={launch.port}',
            SAFE_PATH,
            *setup_lines(launch),
            f"srun --kill-on-bad-exit=1 --cpu-bind=none bash -c {quoted([on_a_node])}",
            "",
        ]
    )

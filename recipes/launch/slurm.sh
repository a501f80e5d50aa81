#!/bin/bash
#SBATCH --job-name=widedraft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# SLURM, one task a node, which starts the processes of its node by Composer's launcher:
#
#     sbatch [--nodes 4] [--gpus-per-node 4] [--partition ...] recipes/launch/slurm.sh my.yaml [key=value ...]
#
# Submit it in a directory of a disk that all nodes share, which recipe, prompts, target and run are on, with the
# environment active that has widedraft. A job that was preempted or lost a node is queued again (--requeue) and
# continues; a mistake in the recipe (exit code 2) ends it. --mem=0: --exclusive gives a job the cores and GPUs of a node
# and not its memory. --cpu-bind=none: some clusters bind a task to one core, and this task starts all processes of its
# node.
set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR="${hosts[0]}" MASTER_PORT="${MASTER_PORT:-29500}"
export PYTHONSAFEPATH=1  # files of the working directory hide no package

srun --kill-on-bad-exit=1 --cpu-bind=none bash -c '
export NODE_RANK="$SLURM_NODEID"
exec python -m composer \
  --nproc "$SLURM_GPUS_ON_NODE" --world_size "$((SLURM_JOB_NUM_NODES * SLURM_GPUS_ON_NODE))" \
  --node_rank "$NODE_RANK" --base_rank "$((NODE_RANK * SLURM_GPUS_ON_NODE))" \
  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
  -m widedraft run "$@"' bash "$@"

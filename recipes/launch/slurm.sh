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
# SLURM: one task per node, which starts the node's processes with Composer's launcher:
#
#     sbatch [--nodes 4] [--gpus-per-node 4] [--partition ...] recipes/launch/slurm.sh my.yaml [key=value ...]
#
# Submit from a directory on a shared filesystem that holds recipe, prompts, target and run directory, with widedraft's
# environment active. Jobs that are preempted or lose a node are requeued (--requeue) and resume; a recipe error (exit
# code 2) ends the job. --mem=0: --exclusive allocates all cores and GPUs of a node, but not its memory.
# --cpu-bind=none: some clusters bind each task to one core, but this task starts all processes of its node.
set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR="${hosts[0]}" MASTER_PORT="${MASTER_PORT:-29500}"
export PYTHONSAFEPATH=1  # files in the working directory must not shadow packages

srun --kill-on-bad-exit=1 --cpu-bind=none bash -c '
export NODE_RANK="$SLURM_NODEID"
exec python -m composer \
  --nproc "$SLURM_GPUS_ON_NODE" --world_size "$((SLURM_JOB_NUM_NODES * SLURM_GPUS_ON_NODE))" \
  --node_rank "$NODE_RANK" --base_rank "$((NODE_RANK * SLURM_GPUS_ON_NODE))" \
  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
  -m widedraft run "$@"' bash "$@"

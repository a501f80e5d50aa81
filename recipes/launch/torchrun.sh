#!/bin/bash
# Multi-node run with torchrun; start it on every node:
#
#     NODES=2 GPUS=8 NODE_RANK=0 MASTER_ADDR=host bash recipes/launch/torchrun.sh my.yaml [key=value ...]
#
# NODE_RANK is 0 on the node at MASTER_ADDR, 1 on the next, and so on. Recipe, prompts, target and run directory must be
# on a shared filesystem. After an interruption, rerun it on all nodes to resume.
# torchrun exits with 1 when a run exits with 2 (recipe error); the run's error message precedes torchrun's report.
set -euo pipefail
: "${NODES:?number of machines}" "${GPUS:?GPUs of each machine}"
: "${NODE_RANK:?number of this machine, from 0}" "${MASTER_ADDR:?name or address of machine 0}"
# torchrun does not set NODE_RANK, which Composer uses in per-node file names.
export NODE_RANK MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"
export PYTHONSAFEPATH=1  # files in the working directory must not shadow packages
# torchrun defaults to one thread per process; divide the cores among the processes instead.
share=$(($(nproc) / GPUS))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((share > 0 ? share : 1))}"
export USE_LIBUV=0  # torchrun hosts the TCPStore; its libuv backend drops connections when values are large

exec python -m torch.distributed.run \
  --nnodes "$NODES" --nproc-per-node "$GPUS" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  -m widedraft run "$@"

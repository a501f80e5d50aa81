#!/bin/bash
# Multi-node run with Composer's launcher; start it on every node:
#
#     NODES=2 GPUS=8 NODE_RANK=0 MASTER_ADDR=host bash recipes/launch/composer.sh my.yaml [key=value ...]
#
# NODE_RANK is 0 on the node at MASTER_ADDR, 1 on the next, and so on. Recipe, prompts, target and run directory must be
# on a shared filesystem. After an interruption, rerun it on all nodes to resume.
set -euo pipefail
: "${NODES:?number of machines}" "${GPUS:?GPUs of each machine}"
: "${NODE_RANK:?number of this machine, from 0}" "${MASTER_ADDR:?name or address of machine 0}"
export NODE_RANK MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"
export PYTHONSAFEPATH=1  # files in the working directory must not shadow packages

exec python -m composer \
  --nproc "$GPUS" --world_size "$((NODES * GPUS))" \
  --node_rank "$NODE_RANK" --base_rank "$((NODE_RANK * GPUS))" \
  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
  -m widedraft run "$@"

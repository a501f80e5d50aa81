#!/bin/bash
# Composer's launcher on every machine, started by hand:
#
#     NODES=2 GPUS=8 NODE_RANK=0 MASTER_ADDR=host bash recipes/launch/composer.sh my.yaml [key=value ...]
#
# NODE_RANK is 0 on the machine whose name is MASTER_ADDR, 1 on the next, and so on. Recipe, prompts, target and run are
# on a disk that all machines share. After an interruption start it again on all of them: the run continues.
set -euo pipefail
: "${NODES:?number of machines}" "${GPUS:?GPUs of each machine}"
: "${NODE_RANK:?number of this machine, from 0}" "${MASTER_ADDR:?name or address of machine 0}"
export NODE_RANK MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"
export PYTHONSAFEPATH=1  # files of the working directory hide no package

exec python -m composer \
  --nproc "$GPUS" --world_size "$((NODES * GPUS))" \
  --node_rank "$NODE_RANK" --base_rank "$((NODE_RANK * GPUS))" \
  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
  -m widedraft run "$@"

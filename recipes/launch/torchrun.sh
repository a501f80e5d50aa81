#!/bin/bash
# torchrun on every machine, started by hand:
#
#     NODES=2 GPUS=8 NODE_RANK=0 MASTER_ADDR=host bash recipes/launch/torchrun.sh my.yaml [key=value ...]
#
# NODE_RANK is 0 on the machine whose name is MASTER_ADDR, 1 on the next, and so on. Recipe, prompts, target and run are
# on a disk that all machines share. After an interruption start it again on all of them: the run continues.
# torchrun exits with 1 where a run exits with 2 (a mistake in the recipe); the run's message stands above its report.
set -euo pipefail
: "${NODES:?number of machines}" "${GPUS:?GPUs of each machine}"
: "${NODE_RANK:?number of this machine, from 0}" "${MASTER_ADDR:?name or address of machine 0}"
# torchrun does not set NODE_RANK, which Composer reads wherever it names files by machine.
export NODE_RANK MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"
export PYTHONSAFEPATH=1  # files of the working directory hide no package
# torchrun would set one thread a process; this gives each its share of the cores.
share=$(($(nproc) / GPUS))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((share > 0 ? share : 1))}"
export USE_LIBUV=0  # torchrun keeps the store in which processes meet; by libuv it loses connections with large values

exec python -m torch.distributed.run \
  --nnodes "$NODES" --nproc-per-node "$GPUS" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  -m widedraft run "$@"

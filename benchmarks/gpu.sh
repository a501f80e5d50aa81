#!/usr/bin/env bash
# On the machine with the GPU: unpack what came in .carry/, then run the next items of the queue. See docs/benchmarks.md.
#
#   benchmarks/gpu.sh --receive          only verify and unpack
#   benchmarks/gpu.sh [--only ITEM ...]  what came, then the queue
#
# What is unpacked stays in $WIDEDRAFT_GPU (default ~/.cache/widedraft-gpu), so a later call begins at once.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
KEEP=${WIDEDRAFT_GPU:-${HOME:-/root}/.cache/widedraft-gpu}
export TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
CARRY=${WIDEDRAFT_CARRY:-.carry}
if [ -d "$CARRY" ]; then
    SECONDS=0
    "$PYTHON" -m benchmarks.gpu.pack receive --carry "$CARRY" --keep "$KEEP"
    echo "received in $SECONDS s"
fi
[ "${1:-}" = --receive ] && exit
export VLLM_CACHE_ROOT="$KEEP/vllm-cache" TRITON_CACHE_DIR="$KEEP/triton" TORCHINDUCTOR_CACHE_DIR="$KEEP/inductor"
export PYTHONPATH="$PWD:$KEEP/site${PYTHONPATH:+:$PYTHONPATH}" PATH="$KEEP/site/bin:$PATH"
exec "$PYTHON" -m benchmarks.gpu --keep "$KEEP" "$@"

#!/usr/bin/env bash
# A GPU's ten minutes, used whole: see docs/gpu.md.
#
#   benchmarks/gpu.sh --pack                 where there is a package index: fill .carry/ (wheels, target), list what travels
#   benchmarks/gpu.sh --dry-run              what would travel and run, how large and how long
#   benchmarks/gpu.sh --receive              on the machine, in each of the two calls: check and keep what came
#   benchmarks/gpu.sh [--only STAGE] ...     on the machine: every stage, in order of worth
#
# What is put together stays in $WIDEDRAFT_GPU (default ~/.cache/widedraft-gpu), so a later call begins at once.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
KEEP=${WIDEDRAFT_GPU:-${HOME:-/root}/.cache/widedraft-gpu}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1

case "${1:-}" in
    --pack) exec "$PYTHON" -m benchmarks.gpu.carry pack ;;
    --dry-run) "$PYTHON" -m benchmarks.gpu.carry list && exec "$PYTHON" -m benchmarks.gpu.stages ;;
esac

receive() {
    "$PYTHON" -m benchmarks.gpu.carry receive --keep "$KEEP"
    [ ! -e "$KEEP/site/ready" ] && compgen -G "$KEEP/carried/*.whl" > /dev/null || return 0
    # Beside what the machine has, not over it, and without the pins that Composer asks for.
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$KEEP/site" "$KEEP"/carried/*.whl
    PYTHONPATH="$KEEP/site" "$PYTHON" -m pip install --quiet --no-index --no-deps --no-build-isolation --no-compile \
        --upgrade --target "$KEEP/widedraft" .
    mv "$KEEP"/widedraft/widedraft-*.dist-info "$KEEP/site/" # its name and version; the code is this working tree's
    touch "$KEEP/site/ready"
}

if [ "${1:-}" = --receive ]; then
    receive
    exit
fi
export PYTHONPATH="$PWD:$KEEP/site${PYTHONPATH:+:$PYTHONPATH}" PATH="$KEEP/site/bin:$PATH"
exec "$PYTHON" -m benchmarks.gpu --keep "$KEEP" "$@"

#!/usr/bin/env bash
# Trains a model with 3-D parallelism, on one node or several, with the command line of Perseus and Merak:
#
#   bash run.sh MODEL MICROBATCH_SIZE NUM_MICROBATCHES [--pp P --dp D --tp T --partition_method ... --dry_run true ...]
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash run.sh ...      and NODE_RANK=1 on the other node
#
# NUM_GPUS       processes of this node (left out: pp x tp x dp / NNODES); without GPUs they run on the CPU
# NNODES         nodes (1)                  NODE_RANK     which of them this is (0)
# MASTER_ADDR    address of node 0          MASTER_PORT   and its port (29500)
# PERSEUS_PORT   port of an energy server on node 0 (7787, if it answers)
# PYTHON         the Python to use (left out: that of .venv beside this file, else python3)
#
# All flags: bash run.sh --help. The documentation is docs/transformers.md.
set -euo pipefail

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
python=${PYTHON:-}
if [[ -z $python ]]; then
    python=python3
    [[ -x $here/.venv/bin/python ]] && python=$here/.venv/bin/python
fi
if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("halocline") is None)'; then
    echo "run.sh: error: $python has no halocline: run make install in $here, or set PYTHON to one that has it" >&2
    exit 2
fi

from_environment=(--nnodes "${NNODES:-1}")
for name in NUM_GPUS NODE_RANK MASTER_ADDR MASTER_PORT PERSEUS_PORT; do
    if [[ -n ${!name:-} ]]; then
        from_environment+=("--${name,,}" "${!name}")
    fi
done
# The processes find each other by what they are told, not by what this shell was told.
unset MASTER_ADDR MASTER_PORT

exec "$python" -m halocline.cli.merak "${from_environment[@]}" "$@"

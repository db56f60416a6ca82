#!/usr/bin/env bash
# Trains on one workstation with one rank a socket (CPU) or one rank a GPU, each bound to its own cores.
# Arguments go to `hpcgnn train`, after those below: bash jobs/workstation.sh --epochs 500
# Signal USR1 to mpirun writes a checkpoint and ends the run; the same command with --resume goes on from it. Ctrl-C
# does so under MPICH; Open MPI kills its ranks on Ctrl-C, which leaves the last periodic checkpoint.

# ==== CHANGE THIS =====================================================================================================
source_graph=ogb:ogbn-products        # see `hpcgnn preprocess --help` for the other sources
name=ogbn-products
device=cpu                            # cpu | cuda
ranks=                                # empty: one a socket, or one a GPU
settings=(--model sage --method uniform --bits 2 --seed 0 --eval-every 5 --checkpoint-every 10)

# ======================================================================================================================
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"

count_sockets() {
    lscpu --parse=SOCKET | grep -v '^#' | sort -u | wc -l
}

count_gpus() {
    nvidia-smi --list-gpus | wc -l
}

[[ -n $ranks ]] || { [[ $device == cuda ]] && ranks=$(count_gpus) || ranks=$(count_sockets); }
cores=$(lscpu --parse=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)   # physical cores: two threads of one share its FPU
threads=$((cores / ranks > 0 ? cores / ranks : 1))
shards=data/shards/$name-p$ranks
run=runs/$name-p$ranks

# A rank that is bound to one socket keeps its rows in that socket's memory; unbound, half of its reads cross sockets.
export OMP_NUM_THREADS=$threads OMP_PROC_BIND=close OMP_PLACES=cores
if ((ranks > cores)); then
    unset OMP_PROC_BIND OMP_PLACES    # nothing to bind to: ranks share cores
elif [[ $MPI4PY_MPIABI == openmpi ]]; then
    HPCGNN_MPIRUN_FLAGS="--map-by slot:PE=$threads --bind-to core --report-bindings"
else
    HPCGNN_MPIRUN_FLAGS="-bind-to core:$threads"
fi

[[ -f $shards/graph.h5 ]] || hpcgnn preprocess "$source_graph" --out "$shards" --parts "$ranks"
hpcgnn_mpirun "$ranks" hpcgnn train "$shards" --out "$run" --device "$device" "${settings[@]}" "$@"
hpcgnn report "$run"

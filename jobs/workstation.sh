#!/usr/bin/env bash
# Trains on one workstation with one rank a NUMA domain (CPU) or one rank a GPU, each bound to its own cores.
# Arguments go to `hpcgnn train`, after those below: bash jobs/workstation.sh --epochs 500
# Ctrl-C, a closed terminal, or TERM, USR1 or USR2 to this script, writes a checkpoint and ends it with status 75; the
# same command with --resume goes on from there. A second Ctrl-C ends it at once, which leaves the last periodic checkpoint.

# ==== CHANGE THIS =====================================================================================================
source_graph=ogb:ogbn-products        # see `hpcgnn preprocess --help` for the other sources
name=ogbn-products
device=cpu                            # cpu | cuda; add --set transport=staged if MPI mishandles pointers of the GPU
ranks=                                # empty: one a NUMA domain, or one a GPU; with more, ranks share GPUs
settings=(--model sage --method uniform --bits 2 --seed 0 --eval-every 5 --checkpoint-every 10)

# ======================================================================================================================
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"

count_gpus() {
    nvidia-smi --list-gpus | wc -l
}

domains=$(hpcgnn_count_domains numa)
[[ -n $ranks ]] || { [[ $device == cuda ]] && ranks=$(count_gpus) || ranks=$domains; }
cores=$(lscpu --parse=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)    # two hardware threads of a core share its FPU
((cores <= $(hpcgnn_cores))) || cores=$(hpcgnn_cores)     # a container or taskset may leave us fewer
threads=$((cores / ranks > 0 ? cores / ranks : 1))
shards=data/shards/$name-p$ranks
run=$(hpcgnn_option --out "runs/$name-p$ranks" "${settings[@]}" "$@")

# Linux puts a page into the memory of the NUMA domain whose core first writes it, and a rank fills its arrays with its
# own threads. Bound to one domain, a rank has all its rows beside its cores; unbound on two sockets, half of its reads
# cross to the other one. OMP_PLACES=cores and OMP_PROC_BIND=close keep one thread on each of the rank's cores.
export OMP_NUM_THREADS=$threads OMP_PROC_BIND=close OMP_PLACES=cores
if ((ranks > cores)); then
    unset OMP_PROC_BIND OMP_PLACES    # nothing to bind to: ranks share cores
else
    HPCGNN_MPIRUN_FLAGS=$(hpcgnn_bind_flags "$ranks" "$threads" numa)
fi

[[ -f $shards/graph.h5 ]] || hpcgnn preprocess "$source_graph" --out "$shards" --parts "$ranks"
hpcgnn_catch_signals INT
hpcgnn_set_launch "$ranks"
hpcgnn_hold "${LAUNCH[@]}" "${HPCGNN_QUIET_START[@]}" hpcgnn train "$shards" --out "$run" --device "$device" \
    "${settings[@]}" "$@"
hpcgnn_has --dry-run "${settings[@]}" "$@" || hpcgnn report "$run"

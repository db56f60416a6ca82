#!/usr/bin/env bash
# From a fresh clone to a comparison: installs, makes a graph, trains on two MPI ranks with fp32 and with packed
# messages, and ends with a table, an HTML report and the seconds of each step. It takes one to two minutes, most
# of it for the installation.
#   HPCGNN_QUICKSTART_BITS     width of the packed messages    default: 2
#   HPCGNN_QUICKSTART_EPOCHS   epochs of each training         default: 80
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
bits=${HPCGNN_QUICKSTART_BITS:-2}
epochs=${HPCGNN_QUICKSTART_EPOCHS:-80}
ranks=2
shards=data/shards/quickstart-p$ranks
HPCGNN_STEPS=$(mktemp)
trap 'rm -f "$HPCGNN_STEPS"' EXIT

heading() {
    printf '\n== %s (%d s)\n' "$*" "$SECONDS"
}

heading "1/5  Python environment and MPI"
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"
printf 'MPI: %s\n' "$MPIRUN"

heading "2/5  A synthetic graph, partitioned for $ranks ranks"
hpcgnn_timed "graph and partition" hpcgnn preprocess synthetic: --out "$shards" --parts "$ranks" --overwrite

# train RUN OPTIONS...
train() {
    local run=$1
    shift
    hpcgnn_mpirun "$ranks" hpcgnn train "$shards" --model sage --layers 3 --hidden 128 --epochs "$epochs" --eval-every 2 \
        --seed 0 --out "$run" --overwrite "$@"
}

heading "3/5  Training with fp32 messages"
hpcgnn_timed "training, fp32" train runs/quickstart-fp32 --method vanilla

heading "4/5  Training with $bits-bit messages"
hpcgnn_timed "training, $bits-bit" train runs/quickstart-packed --method uniform --bits "$bits"

heading "5/5  Comparison"
hpcgnn_timed "report" hpcgnn report runs/quickstart-fp32 runs/quickstart-packed --out runs/quickstart.html

heading "Seconds of each step; kernels are compiled while packages are installed"
awk -F '\t' '{ printf "%-28s %6.1f s\n", $1, $2 }' "$HPCGNN_STEPS"
printf '%-28s %4d   s\n' "all together" "$SECONDS"

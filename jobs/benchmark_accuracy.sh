#!/usr/bin/env bash
# Accuracy of a two-layer GCN on Cora, CiteSeer and PubMed (public split, 10 seeds, selected on validation): float32
# messages at 1, 2 and 4 ranks, 8-bit messages at 2. Ends with one table per graph; finished runs are not repeated.
#   HPCGNN_DATASETS         folder that holds cora.npz, citeseer.npz and pubmed.npz (docs/own-data.md has the format)
#   HPCGNN_BENCHMARK_OUT    default: runs/benchmark-accuracy
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-accuracy}

# train GRAPH RANKS NAME OPTIONS...
train() {
    local graph=$1 ranks=$2 run=$out/$1-$3 shards=data/shards/$1-p$2
    shift 3
    make_shards "$graph" "$shards" "$ranks"
    [[ -f $run/summary.json ]] || hpcgnn_mpirun "$ranks" hpcgnn train "$shards" --model gcn --preset planetoid \
        --repeat 10 --out "$run" --resume "$@"
}

for graph in cora citeseer pubmed; do
    train "$graph" 2 p2
    train "$graph" 1 p1
    train "$graph" 4 p4
    train "$graph" 2 p2-8bit --method uniform --bits 8
done
for graph in cora citeseer pubmed; do
    hpcgnn report "$out/$graph"-{p2,p1,p4,p2-8bit} --out "$out/$graph.html"
done

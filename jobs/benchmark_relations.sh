#!/usr/bin/env bash
# Seconds per epoch and memory per rank of rgcn on a made graph of the size of ogbn-mag: 1.9 million nodes, 21 million edges of
# 4 relations, 128 features, 349 classes. `hpcgnn train` prints both at its end, and summary.json has them.
#   HPCGNN_BENCHMARK_GRAPH      settings of the source `synthetic:`
#   HPCGNN_BENCHMARK_SETTINGS   of the training, as in "num_bases=2 precision=bf16"; default: none
#   HPCGNN_BENCHMARK_RANKS      default: 2
#   HPCGNN_BENCHMARK_OUT        default: runs/benchmark-relations
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"
graph=${HPCGNN_BENCHMARK_GRAPH:-nodes=1900000,mean_degree=11,classes=349,features=128,relations=4}
read -ra settings <<<"${HPCGNN_BENCHMARK_SETTINGS:-}"
ranks=${HPCGNN_BENCHMARK_RANKS:-2}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-relations}
shards=data/shards/relations-p$ranks

[[ -s $shards/graph.h5 ]] || hpcgnn preprocess "synthetic:$graph" --parts "$ranks" --partitioner ldg --out "$shards" --overwrite
hpcgnn_mpirun "$ranks" hpcgnn train "$shards" --model rgcn --layers 2 --hidden 64 --epochs 6 --eval-every 6 \
    --checkpoint-every 0 "${settings[@]/#/--set=}" --out "$out" --overwrite

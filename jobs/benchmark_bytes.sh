#!/usr/bin/env bash
# Bytes and score by width of message: ogbn-arxiv without its features, GraphSAGE 3 x 256 on two ranks, float32 against
# uniform 8, 4, 2 and 1 bit. Ends with the table of `hpcgnn report`; finished runs are kept and not repeated.
#   HPCGNN_DATASETS           folder that holds ogbn_arxiv_nofeat.npz (docs/own-data.md has the format)
#   HPCGNN_BENCHMARK_EPOCHS   default: 100
#   HPCGNN_BENCHMARK_OUT      default: runs/benchmark-bytes
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
epochs=${HPCGNN_BENCHMARK_EPOCHS:-100}
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-bytes}
shards=data/shards/ogbn_arxiv_nofeat-p2

make_shards ogbn_arxiv_nofeat "$shards" 2

# train NAME OPTIONS...
train() {
    local run=$out/$1
    shift
    [[ -f $run/summary.json ]] || hpcgnn_mpirun 2 hpcgnn train "$shards" --model sage --layers 3 --hidden 256 \
        --epochs "$epochs" --lr 0.01 --dropout 0.5 --norm layer --eval-every 5 --seed 0 --out "$run" --resume "$@"
}

train vanilla --method vanilla
for bits in 8 4 2 1; do
    train "uniform-$bits" --method uniform --bits "$bits"
done
hpcgnn report "$out"/vanilla "$out"/uniform-{8,4,2,1} --out "$out/report.html"

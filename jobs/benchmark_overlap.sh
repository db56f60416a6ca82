#!/usr/bin/env bash
# Waiting with and without overlap, on a link slowed so that messages take as long as computing: GraphSAGE 3 x 256 on
# ogbn_arxiv_nofeat, float32 messages. The link's pace is derived from a run without one. Ends with a table of medians.
#   HPCGNN_DATASETS           folder that holds ogbn_arxiv_nofeat.npz (docs/own-data.md has the format)
#   HPCGNN_BENCHMARK_RANKS    default: 2
#   HPCGNN_BENCHMARK_EPOCHS   default: 12; the first two are not counted
#   HPCGNN_BENCHMARK_OUT      default: runs/benchmark-overlap; replaced
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
ranks=${HPCGNN_BENCHMARK_RANKS:-2}
epochs=${HPCGNN_BENCHMARK_EPOCHS:-12}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-overlap}
shards=data/shards/ogbn_arxiv_nofeat-p$ranks

make_shards ogbn_arxiv_nofeat "$shards" "$ranks"

# train NAME OPTIONS...
train() {
    local run=$out/$1
    shift
    hpcgnn_mpirun "$ranks" hpcgnn train "$shards" --model sage --layers 3 --hidden 256 --epochs "$epochs" \
        --eval-every "$epochs" --checkpoint-every 0 --out "$run" --overwrite "$@"
}

train unpaced --method vanilla --set overlap=false
pace=$(python "$here/overlap_table.py" pace "$out/unpaced")
train waiting --method vanilla --set overlap=false --set "link_mbps=$pace"
train overlapped --method vanilla --set "link_mbps=$pace"
train pipelined --method pipegcn --set "link_mbps=$pace"
train joint --method joint --set "link_mbps=$pace"
python "$here/overlap_table.py" table "$out" unpaced waiting overlapped pipelined joint

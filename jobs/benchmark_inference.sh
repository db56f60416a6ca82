#!/usr/bin/env bash
# Seconds and memory of trained models of integers beside floats, torch and DGL, in batches of METIS clusters and on the
# whole graph. The models are the first seed's of jobs/benchmark_low_bit.sh, which trains them first where they are not there:
#   HPCGNN_BENCHMARK_MODELS="gcn gin sage" HPCGNN_BENCHMARK_SEEDS=1 bash jobs/benchmark_low_bit.sh
#   HPCGNN_DATASETS               folder that holds the three .npz files (docs/own-data.md has the format)
#   HPCGNN_BENCHMARK_DATASETS     default: "pubmed amazon_computers ogbn_arxiv_nofeat"
#   HPCGNN_BENCHMARK_MODELS       default: "gcn gin sage"
#   HPCGNN_BENCHMARK_PEERS        default: torch, and dgl where it is installed
#   HPCGNN_BENCHMARK_RUNS         default: runs/benchmark-low-bit
#   HPCGNN_BENCHMARK_OUT          default: runs/benchmark-inference
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
runs=${HPCGNN_BENCHMARK_RUNS:-runs/benchmark-low-bit}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-inference}
chosen=${HPCGNN_BENCHMARK_DATASETS:-pubmed amazon_computers ogbn_arxiv_nofeat}
models=${HPCGNN_BENCHMARK_MODELS:-gcn gin sage}
peers=${HPCGNN_BENCHMARK_PEERS:-torch$(python -c 'import importlib.util as u; print(",dgl" * bool(u.find_spec("dgl")))')}

files=()
mkdir -p "$out"
for dataset in $chosen; do
    files+=("$datasets/$dataset.npz")
    make_shards "$dataset" "data/shards/$dataset-p1" 1
    for model in $models; do
        for bits in 2 4 8; do
            run=$runs/$dataset/$model/$bits/0 file=$out/$dataset-$model-$bits.h5
            if [[ ! -f $run/summary.json ]]; then
                echo "hpcgnn: $run has no trained model; run jobs/benchmark_low_bit.sh first" >&2
                exit 1
            fi
            [[ -f $file ]] || hpcgnn_mpirun 1 hpcgnn quantize "$run" "data/shards/$dataset-p1" --out "$file"
            files+=("$file")
        done
    done
done
for clusters in 1500 0; do
    hpcgnn bench inference "${files[@]}" --clusters "$clusters" --peer "$peers" --out "$out/clusters-$clusters"
done

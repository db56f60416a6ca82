#!/usr/bin/env bash
# Micro-F1 and macro-F1 of hpcgnn and of PyTorch Geometric on typed graphs, with the same models, splits and seeds. Ends with
# tables. Finished trainings are not repeated, and each seed trains all splits before the next begins.
#   HPCGNN_DATASETS             folder that holds the folder typed/ of the graphs' .npz files (docs/typed.md has the format)
#   HPCGNN_BENCHMARK_GRAPHS     default: "acm dblp aminer freebase"
#   HPCGNN_BENCHMARK_MODELS     default: "rgcn rgat hgt"
#   HPCGNN_BENCHMARK_SPLITS     labels of a class in training; default: "20 40 60"
#   HPCGNN_BENCHMARK_SEEDS      default: "0 1 2 3 4 5 6 7 8 9"
#   HPCGNN_BENCHMARK_OUT        default: runs/benchmark-typed
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
read -ra graphs <<<"${HPCGNN_BENCHMARK_GRAPHS:-acm dblp aminer freebase}"
read -ra models <<<"${HPCGNN_BENCHMARK_MODELS:-rgcn rgat hgt}"
read -ra splits <<<"${HPCGNN_BENCHMARK_SPLITS:-20 40 60}"
seeds=${HPCGNN_BENCHMARK_SEEDS:-0 1 2 3 4 5 6 7 8 9}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-typed}
mkdir -p "$out"

# shards_of GRAPH RANKS: one folder per split, whose names `shards` gets
shards_of() {
    local split
    shards=()
    [[ -f $out/$1.npz ]] || python "$here/typed_scores.py" reduce "$datasets/typed/$1.npz" "$out/$1.npz"
    for split in "${splits[@]}"; do
        shards+=("data/shards/typed-$1-$split-p$2")
        [[ -f ${shards[-1]}/graph.h5 ]] || hpcgnn preprocess "npz:$out/$1.npz,split=$split" --symmetrize \
            --parts "$2" --out "${shards[-1]}"
    done
}

for model in "${models[@]}"; do
    for graph in "${graphs[@]}"; do
        shards_of "$graph" 1
        python "$here/typed_scores.py" train "$out/scores.jsonl" "$model" "$seeds" "${shards[@]}"
        shards_of "$graph" 2
        hpcgnn_mpirun 2 python "$here/typed_scores.py" train "$out/scores.jsonl" "$model" "${seeds%% *}" "${shards[0]}"
    done
done
python "$here/typed_table.py" "$out/scores.jsonl"

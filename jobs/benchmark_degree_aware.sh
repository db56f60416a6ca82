#!/usr/bin/env bash
# MEGA's Table VI: test score of GCN, GIN and SAGE on cora, citeseer and pubmed in float32, with degree-aware widths at
# the paper's average bits, with Degree-Quant at 4 bits and uniformly at 4 bits; and all bits that are stored.
# Settings are the same for all graphs, the epoch is chosen on validation, within the target. Ends with a table;
# finished runs are kept, a run that was stopped or has fewer seeds goes on, so call it again until it is done.
#   HPCGNN_DATASETS               folder that holds the three .npz files (data/README.md has the format)
#   HPCGNN_BENCHMARK_SEEDS        default: 10
#   HPCGNN_BENCHMARK_DATASETS     default: "cora citeseer pubmed"
#   HPCGNN_BENCHMARK_MODELS       default: "gcn gin sage"
#   HPCGNN_BENCHMARK_OUT          default: runs/benchmark-degree-aware
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
seeds=${HPCGNN_BENCHMARK_SEEDS:-10}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-degree-aware}
chosen=${HPCGNN_BENCHMARK_DATASETS:-cora citeseer pubmed}
models=${HPCGNN_BENCHMARK_MODELS:-gcn gin sage}

# Average bits of Table VI; where the paper has none, those of its nearest row.
declare -A average_bits=(
    [cora-gcn]=1.70 [cora-gin]=2.37 [cora-sage]=3.40
    [citeseer-gcn]=1.87 [citeseer-gin]=2.54 [citeseer-sage]=3.40
    [pubmed-gcn]=2.50 [pubmed-gin]=2.54 [pubmed-sage]=3.40
)
# Nodes, features and classes.
declare -A sizes=([cora]="2708 1433 7" [citeseer]="3327 3703 6" [pubmed]="19717 500 3")

# target_kb DATASET MODEL: nodes x columns of all layers' rows x average bits, in KB; GIN has rows inside its layers too.
target_kb() {
    read -ra size <<<"${sizes[$1]}"
    awk -v nodes="${size[0]}" -v features="${size[1]}" -v classes="${size[2]}" -v model="$2" \
        -v bits="${average_bits[$1-$2]}" 'BEGIN {
            columns = features + (model == "sage" ? 256 : 128) + (model == "gin" ? 128 + classes : 0)
            printf "%.3f", nodes * columns * bits / 8192
        }'
}

# flags_of_scheme DATASET MODEL SCHEME
flags_of_scheme() {
    case $3 in
        fp32) ;;
        degree-aware) echo --quantize degree-aware --target-kb "$(target_kb "$1" "$2")" ;;
        *) echo --quantize "$3" --quantize-bits 4 ;;
    esac
}

# flags_of_model MODEL
flags_of_model() {
    case $1 in
        gcn) echo --model gcn --hidden 128 --lr 0.01 ;;
        # At 0.01 its last ReLU dies on features that are not normalized.
        gin) echo --model gin --hidden 128 --lr 0.002 ;;
        sage) echo --model sage --hidden 256 --lr 0.01 ;;
    esac
}

# train DATASET MODEL SCHEME
train() {
    local run=$out/$1/$2/$3 model scheme
    read -ra model <<<"$(flags_of_model "$2")"
    read -ra scheme <<<"$(flags_of_scheme "$1" "$2" "$3")"
    has_seeds "$run" "$seeds" || hpcgnn_mpirun 1 hpcgnn train "data/shards/$1-raw-p1" --layers 2 --norm none \
        --dropout 0.5 --weight-decay 5e-4 --weight-decay-layers first --epochs 200 --eval-every 1 --seed 0 \
        --repeat "$seeds" --checkpoint-every 50 --out "$run" --resume "${model[@]}" "${scheme[@]}"
}

for dataset in $chosen; do
    make_shards "$dataset" "data/shards/$dataset-raw-p1" 1 --normalize-features none
    for model in $models; do
        for scheme in fp32 degree-aware degree-quant uniform; do train "$dataset" "$model" "$scheme"; done
    done
done
python "$here/degree_aware_table.py" "$out"

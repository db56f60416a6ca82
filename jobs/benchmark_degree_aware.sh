#!/usr/bin/env bash
# MEGA's Table VI: test score of GCN, GIN and SAGE on cora, citeseer and pubmed in float32, with degree-aware widths at
# the paper's average bits, whose gradients are those of rows' own error or of the loss, with widths by layer in as many
# KB, with Degree-Quant at 4 bits and uniformly at 4 bits; and all bits that are stored.
# Settings are the same for all graphs but for the learning rate, which each row has the best of three on validation,
# compared by three seeds; so is the epoch chosen, within the target. Ends with a table; finished runs are kept, a run
# that was stopped or has fewer seeds goes on, so call it again until it is done.
#   HPCGNN_DATASETS               folder that holds the three .npz files (docs/own-data.md has the format)
#   HPCGNN_BENCHMARK_SEEDS        default: 10
#   HPCGNN_BENCHMARK_ROWS         DATASET-MODEL of each; default: all six of the paper
#   HPCGNN_BENCHMARK_FEATURES     as of preprocess --normalize-features; default: none, and 0/1 features take 1 bit
#   HPCGNN_BENCHMARK_SCHEMES      default: all
#   HPCGNN_BENCHMARK_OUT          default: runs/benchmark-degree-aware-FEATURES
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
seeds=${HPCGNN_BENCHMARK_SEEDS:-10}
features=${HPCGNN_BENCHMARK_FEATURES:-none}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-degree-aware-$features}
read -ra schemes <<<"${HPCGNN_BENCHMARK_SCHEMES:-fp32 degree-aware degree-aware-loss layer-aware degree-quant uniform}"
chosen=${HPCGNN_BENCHMARK_ROWS:-cora-gcn cora-gin cora-sage citeseer-gcn citeseer-gin pubmed-gcn}
rates="0.01 0.003 0.001"

# Average bits of Table VI.
declare -A average_bits=(
    [cora-gcn]=1.70 [cora-gin]=2.37 [cora-sage]=3.40 [citeseer-gcn]=1.87 [citeseer-gin]=2.54 [pubmed-gcn]=2.50
)

# flags_of_scheme DATASET MODEL SCHEME
flags_of_scheme() {
    case $3 in
        fp32) ;;
        degree-aware | layer-aware) echo --quantize "$3" --set "target_kb=$(target_kb "$1" "$2" "${average_bits[$1-$2]}")" ;;
        degree-aware-loss)
            echo --quantize degree-aware --set "target_kb=$(target_kb "$1" "$2" "${average_bits[$1-$2]}")" \
                --set quantize_gradient=straight-through ;;
        *) echo --quantize "$3" --set quantize_bits=4 ;;
    esac
}

# flags_of_model MODEL
flags_of_model() {
    case $1 in
        gcn) echo --model gcn --hidden 128 --norm none ;;
        # Sums of features that are not normalized: without a norm its ReLUs die at some seeds.
        gin) echo --model gin --hidden 128 --norm layer ;;
        sage) echo --model sage --hidden 256 --norm none ;;
    esac
}

# train DATASET MODEL SCHEME RATE SEEDS
train() {
    local run=$out/$1/$2/$3/$4 model_flags scheme_flags
    read -ra model_flags <<<"$(flags_of_model "$2")"
    read -ra scheme_flags <<<"$(flags_of_scheme "$1" "$2" "$3")"
    has_seeds "$run" "$5" || hpcgnn_mpirun 1 hpcgnn train "data/shards/$1-$features-p1" --layers 2 --lr "$4" \
        --dropout 0.5 --weight-decay 5e-4 --set weight_decay_layers=first --epochs 200 --eval-every 1 --seed 0 \
        --repeat "$5" --checkpoint-every 50 --out "$run" --resume "${model_flags[@]}" "${scheme_flags[@]}"
}

# train_best DATASET MODEL SCHEME
train_best() {
    local rate runs=()
    for rate in $rates; do
        train "$@" "$rate" 3
        runs+=("$out/$1/$2/$3/$rate")
    done
    rate=$(basename "$(python "$here/best_rate.py" "${runs[@]}")")
    train "$@" "$rate" "$seeds"
}

for row in $chosen; do
    dataset=${row%-*} model=${row##*-}
    [[ -n ${average_bits[$row]:-} ]] || { echo "hpcgnn: Table VI has no row $row" >&2; exit 1; }
    make_shards "$dataset" "data/shards/$dataset-$features-p1" 1 --normalize-features "$features"
    for scheme in "${schemes[@]}"; do train_best "$dataset" "$model" "$scheme"; done
done
python "$here/degree_aware_table.py" "$out"

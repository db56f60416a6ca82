#!/usr/bin/env bash
# Scores of a training with and without each recipe of docs/models.md, or any other settings, paired by seed. Ends with one table
# per graph. Finished runs are not repeated, and each seed trains all before the next begins, so a job that was stopped
# has a table too.
#   HPCGNN_DATASETS             folder that holds the graphs' .npz files (docs/own-data.md has the format)
#   HPCGNN_BENCHMARK_GRAPHS     default: "tolokers amazon_computers"
#   HPCGNN_BENCHMARK_MODELS     default: "sage gcn"
#   HPCGNN_BENCHMARK_RECIPES    each with its settings, "," between them; correct-and-smooth is of `hpcgnn predict`
#   HPCGNN_BENCHMARK_SEEDS      default: "0 1 2 3 4"
#   HPCGNN_BENCHMARK_SETTINGS   of all trainings, as in "epochs=300 lr=0.003"; a recipe's own win; default: none
#   HPCGNN_BENCHMARK_RANKS      default: 1
#   HPCGNN_BENCHMARK_OUT        default: runs/benchmark-recipes; other settings want another folder
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
read -ra graphs <<<"${HPCGNN_BENCHMARK_GRAPHS:-tolokers amazon_computers}"
read -ra models <<<"${HPCGNN_BENCHMARK_MODELS:-sage gcn}"
recipes="input_dropout=0 norm=batch residual=true optimizer=adamw,weight_decay=0.01 ema=0.95 edge_dropout=0.2"
recipes+=" label_inputs=0.5 correct-and-smooth"
read -ra recipes <<<"${HPCGNN_BENCHMARK_RECIPES:-$recipes}"
read -ra seeds <<<"${HPCGNN_BENCHMARK_SEEDS:-0 1 2 3 4}"
read -ra settings <<<"${HPCGNN_BENCHMARK_SETTINGS:-}"
ranks=${HPCGNN_BENCHMARK_RANKS:-1}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-recipes}

# train GRAPH MODEL SEED RECIPE: SHARDS is made where it is missing
train() {
    local graph=$1 model=$2 seed=$3 recipe=$4 shards=data/shards/$1-recipes-p$ranks words=() word run=$out/$1/$2/$4/$3
    local -A value=([layers]=3 [hidden]=64 [lr]=0.01 [weight_decay]=0.0005 [epochs]=200 [eval_every]=2)
    case $graph in      # features made from the graph are standardized already
        *_nofeat) make_shards "$graph" "$shards" "$ranks" --cluster-rows 128 ;;
        *) make_shards "$graph" "$shards" "$ranks" --cluster-rows 128 --normalize-features standard ;;
    esac
    if [[ $recipe == correct-and-smooth ]]; then
        mkdir -p "$run"
        [[ -s $run/scores.txt ]] || hpcgnn predict "$out/$graph/$model/base/$seed" "$shards" --correct-and-smooth |
            tail -n 1 >"$run/scores.txt"
        return
    fi
    [[ $graph != tolokers ]] || value[score]=roc_auc
    [[ $recipe == base ]] || IFS=, read -ra words <<<"$recipe"
    for word in "${settings[@]}" "${words[@]}"; do
        value[${word%%=*}]=${word#*=}
    done
    words=()
    for word in "${!value[@]}"; do
        words+=(--set "$word=${value[$word]}")
    done
    [[ -f $run/summary.json ]] || hpcgnn_mpirun "$ranks" \
        hpcgnn train "$shards" --model "$model" --seed "$seed" "${words[@]}" --out "$run" --resume
}

for seed in "${seeds[@]}"; do
    for graph in "${graphs[@]}"; do
        for model in "${models[@]}"; do
            for recipe in base "${recipes[@]}"; do
                train "$graph" "$model" "$seed" "$recipe"
            done
        done
    done
done
python "$here/recipe_table.py" "$out"

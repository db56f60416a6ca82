#!/usr/bin/env bash
# Fidelity of every method: test score, bytes, bits and synchronous epochs of seven models on pubmed and
# amazon_computers at 4 ranks, several seeds, and of two on ogbn_arxiv_nofeat, all methods under the same settings.
# Ends with a table; finished runs are kept, a run that was stopped or has fewer seeds goes on, so call it again until
# it is done.
#   HPCGNN_DATASETS               folder that holds the three .npz files (docs/own-data.md has the format)
#   HPCGNN_BENCHMARK_SEEDS        default: 5
#   HPCGNN_BENCHMARK_LARGE_SEEDS  of the large graph; default: 1
#   HPCGNN_BENCHMARK_RANKS        default: 4
#   HPCGNN_BENCHMARK_DATASETS     default: "pubmed amazon_computers ogbn_arxiv_nofeat"
#   HPCGNN_BENCHMARK_MODELS       of the others; default: "gcn sage gat gcnii dagnn sgc jknet"
#   HPCGNN_BENCHMARK_LARGE        models of the large graph; default: "sage gcnii"
#   HPCGNN_BENCHMARK_OUT          default: runs/benchmark-fidelity
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
seeds=${HPCGNN_BENCHMARK_SEEDS:-5}
large_seeds=${HPCGNN_BENCHMARK_LARGE_SEEDS:-1}
ranks=${HPCGNN_BENCHMARK_RANKS:-4}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-fidelity}
large=${HPCGNN_BENCHMARK_LARGE:-sage gcnii}
models=${HPCGNN_BENCHMARK_MODELS:-gcn sage gat gcnii dagnn sgc jknet}
chosen=${HPCGNN_BENCHMARK_DATASETS:-pubmed amazon_computers ogbn_arxiv_nofeat}

main_methods=(vanilla sylvie adaqp joint)
more_methods=(uniform-1 pipegcn bns-0.1)

flags_of_method() {
    case $1 in
        uniform-1) echo --method uniform --bits 1 ;;
        bns-0.1) echo --method bns --set share=0.1 ;;
        joint-predict) echo --method joint --set predict=previous ;;
        *) echo --method "$1" ;;
    esac
}

# flags_of_model DATASET MODEL
# Layers, widths and rates follow the models' papers (data/registry.toml, presets "deep"), with fewer epochs.
flags_of_model() {
    case $2 in
        gcn | sage) echo --model "$2" --layers 3 --hidden 64 --norm layer --dropout 0.5 --lr 0.01 ;;
        gat) echo --model gat --layers 2 --hidden 64 --set heads=4 --norm none --dropout 0.5 --lr 0.005 ;;
        gcnii) echo --model gcnii --layers 8 --hidden 64 --norm none --dropout 0.5 --lr 0.01 --set theta=0.5 ;;
        dagnn)
            local rate=0.01
            # At 0.01 the first layer's ReLUs die on features that are not normalized.
            [[ $1 != amazon_computers ]] || rate=0.002
            echo --model dagnn --layers 8 --hidden 64 --norm none --dropout 0.5 --lr "$rate" ;;
        # Without dropout SGC's rows are constant, and no method sends anything.
        sgc) echo --model sgc --layers 8 --dropout 0.1 --lr 0.2 --weight-decay 1e-5 ;;
        jknet) echo --model jknet --layers 8 --hidden 32 --norm none --dropout 0.5 --lr 0.005 ;;
    esac
}

# train DATASET MODEL METHOD SEEDS OPTIONS...
train() {
    local run=$out/$1/$2/$3 shards=data/shards/$1-p$ranks model method
    read -ra model <<<"$(flags_of_model "$1" "$2")"
    read -ra method <<<"$(flags_of_method "$3")"
    local wanted=$4
    shift 4
    has_seeds "$run" "$wanted" || hpcgnn_mpirun "$ranks" hpcgnn train "$shards" --weight-decay 5e-4 \
        "${model[@]}" "${method[@]}" --seed 0 --repeat "$wanted" --checkpoint-every 0 --out "$run" --resume "$@"
}

# train_small DATASET MODEL METHOD
train_small() {
    local epochs=100
    # After 100 epochs the loss still falls by a tenth in ten epochs.
    [[ $1 != amazon_computers ]] || epochs=200
    train "$@" "$seeds" --epochs "$epochs" --eval-every 2
}

# train_large DATASET MODEL METHOD EPOCHS OPTIONS...
train_large() {
    train "$1" "$2" "$3" "$large_seeds" --epochs "$4" --eval-every 5 --weight-decay 0 "${@:5}"
}

for dataset in $chosen; do
    make_shards "$dataset" "data/shards/$dataset-p$ranks" "$ranks"
    if [[ $dataset == ogbn_arxiv_nofeat ]]; then
        for model in $large; do
            width=64
            [[ $model != sage ]] || width=256
            for method in "${main_methods[@]}" joint-predict; do
                train_large "$dataset" "$model" "$method" 100 --hidden "$width"
            done
        done
        continue
    fi
    for model in $models; do
        methods=("${main_methods[@]}")
        case $model in gcn | gat | gcnii) methods+=("${more_methods[@]}") ;; esac
        for method in "${methods[@]}"; do train_small "$dataset" "$model" "$method"; done
    done
done
python "$here/fidelity_table.py" "$out"

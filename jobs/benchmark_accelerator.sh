#!/usr/bin/env bash
# MEGA's comparison of accelerators (Fig. 14, 16, 17): trains GCN, GIN and SAGE of its Table III on cora, citeseer and
# pubmed with degree-aware widths at Table VI's average bits, exports them, and models their inference on MEGA and on
# HyGCN, GCNAX, GROW and SGCN; NELL and Reddit are drawn graphs of as many nodes, arcs and features.
# Finished runs are kept, so call it again where it was stopped.
#   HPCGNN_DATASETS               folder that holds the three .npz files (docs/own-data.md has the format)
#   HPCGNN_BENCHMARK_EPOCHS       default: 200
#   HPCGNN_BENCHMARK_OUT          default: runs/benchmark-accelerator
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
epochs=${HPCGNN_BENCHMARK_EPOCHS:-200}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-accelerator}

# Average bits: Table VI; citeseer's SAGE and pubmed's GIN and SAGE, which it lacks, have those of the same model on cora.
declare -A average_bits=(
    [cora-gcn]=1.70 [cora-gin]=2.37 [cora-sage]=3.40 [citeseer-gcn]=1.87 [citeseer-gin]=2.54 [citeseer-sage]=3.40
    [pubmed-gcn]=2.50 [pubmed-gin]=2.37 [pubmed-sage]=3.40
)

# flags_of_model MODEL: rates as data/benchmarks/low-bit.md has chosen them on validation
flags_of_model() {
    case $1 in
        gcn) echo --model gcn --hidden 128 --norm none --lr 0.01 ;;
        gin) echo --model gin --hidden 128 --norm layer --lr 0.001 ;;
        sage) echo --model sage --hidden 256 --norm none --lr 0.01 ;;
    esac
}

files=()
for dataset in cora citeseer pubmed; do
    make_shards "$dataset" "data/shards/$dataset-p1" 1
    files+=("$datasets/$dataset.npz")
    for model in gcn gin sage; do
        run=$out/$dataset-$model
        read -ra flags <<<"$(flags_of_model "$model")"
        has_seeds "$run" 1 || hpcgnn_mpirun 1 hpcgnn train "data/shards/$dataset-p1" --layers 2 --dropout 0.5 \
            --weight-decay 5e-4 --set weight_decay_layers=first --epochs "$epochs" --eval-every 1 --seed 0 \
            --checkpoint-every 50 --out "$run" --resume "${flags[@]}" \
            --quantize degree-aware --set "target_kb=$(target_kb "$dataset" "$model" "${average_bits[$dataset-$model]}")"
        [[ -f $run.h5 ]] || hpcgnn_mpirun 1 hpcgnn quantize "$run" "data/shards/$dataset-p1" --out "$run.h5"
        files+=("$run.h5")
    done
done
hpcgnn bench accelerator "${files[@]}" drawn:nell:gcn drawn:reddit:sage --out "$out"

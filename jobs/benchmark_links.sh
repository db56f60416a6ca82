#!/usr/bin/env bash
# Recommendation on Gowalla: Recall@20 and seconds per epoch of examples/recommend.py, and seconds per update of LightGCN's public
# recipe in plain PyTorch. Without HPCGNN_BENCHMARK_FINAL, every fifth pair of a fifth of the users chooses the settings;
# with it, all of train is learned, and test is scored at the last epoch.
#   HPCGNN_DATASETS             folder that holds links/gowalla.npz: train and test, (n, 2) numbers of users and items
#   HPCGNN_BENCHMARK_FINAL      any text, for the test score
#   HPCGNN_BENCHMARK_SETTINGS   of the training, as in "epochs=600 lr=0.02"; default: none, which takes the example's
#   HPCGNN_BENCHMARK_SEEDS      default: "0"
#   HPCGNN_BENCHMARK_UPDATES    of the public recipe; default: 20
#   HPCGNN_BENCHMARK_RANKS      default: 1
#   HPCGNN_BENCHMARK_OUT        default: runs/benchmark-links
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
read -ra settings <<<"${HPCGNN_BENCHMARK_SETTINGS:-}"
read -ra seeds <<<"${HPCGNN_BENCHMARK_SEEDS:-0}"
ranks=${HPCGNN_BENCHMARK_RANKS:-1}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-links}
archive=$datasets/links/gowalla.npz
part=validation users=0.2
[[ -z ${HPCGNN_BENCHMARK_FINAL:-} ]] || part=test users=0
shards=data/shards/gowalla-$part-p$ranks

[[ -s $shards/graph.h5 ]] || python examples/recommend.py "$archive" "$shards" "$ranks" "$users"
for seed in "${seeds[@]}"; do
    run=$out/$part/$seed
    [[ -f $run/summary.json ]] || hpcgnn_mpirun "$ranks" python examples/recommend.py "$shards" "seed=$seed" \
        "${settings[@]}" "out=$run"
done
python jobs/measurements/lightgcn.py "$archive" "${HPCGNN_BENCHMARK_UPDATES:-20}"

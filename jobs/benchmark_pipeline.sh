#!/usr/bin/env bash
# What a slow link costs an epoch, by method: GraphSAGE 3 x 256 in bfloat16 on a block model of 169 k nodes, 2 ranks of
# one thread, each a host of its own: a network namespace, whose line to the other is shaped. Ends with a table of
# medians.
# Needs root, iproute2 (ip, tc) and the tbf queue discipline; without them it says so and ends with 0.
#   HPCGNN_BENCHMARK_RATES     default: "none 1gbit 200mbit 50mbit", as tc writes them; none first, the others are
#                              compared with it
#   HPCGNN_BENCHMARK_METHODS   default: "vanilla pipegcn uniform sylvie joint"; uniform at 1 bit
#   HPCGNN_BENCHMARK_OPTIONS   further options of every training, e.g. "--set pipeline=whole"
#   HPCGNN_BENCHMARK_EPOCHS    default: 40; the first ones are not counted, nor synchronous ones where there are others
#   HPCGNN_BENCHMARK_SHARDS    default: data/shards/block-model-p2; made where they are missing
#   HPCGNN_BENCHMARK_OUT       default: runs/benchmark-pipeline; replaced
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/two_hosts.sh
source "$here/two_hosts.sh"
require_two_hosts
HPCGNN_EXTRAS=${HPCGNN_EXTRAS:-report},test
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"
read -ra rates <<<"${HPCGNN_BENCHMARK_RATES:-none 1gbit 200mbit 50mbit}"
read -ra methods <<<"${HPCGNN_BENCHMARK_METHODS:-vanilla pipegcn uniform sylvie joint}"
read -ra options <<<"${HPCGNN_BENCHMARK_OPTIONS:-}"
epochs=${HPCGNN_BENCHMARK_EPOCHS:-40}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-pipeline}
shards=${HPCGNN_BENCHMARK_SHARDS:-data/shards/block-model-p2}
open_two_hosts

# train RATE METHOD OPTIONS...
train() {
    local run=$out/$1/$2
    shift 2
    on_first_host env OMP_NUM_THREADS=1 "$MPIRUN" "${launch[@]}" -n 2 hpcgnn train "$shards" --model sage \
        --layers 3 --hidden 256 --precision bf16 --epochs "$epochs" --eval-every "$epochs" --checkpoint-every 0 \
        --out "$run" --overwrite "$@" "${options[@]}"
}

[[ -f $shards/graph.h5 ]] || hpcgnn preprocess synthetic:nodes=169343,mean_degree=12.56,classes=40,features=128 \
    --out "$shards" --parts 2
for rate in "${rates[@]}"; do
    shape "$rate"
    for method in "${methods[@]}"; do
        bits=()
        [[ $method != uniform ]] || bits=(--bits 1)
        train "$rate" "$method" --method "$method" "${bits[@]}"
    done
done
python "$here/pipeline_table.py" "$out" "${rates[*]}" "${methods[*]}"

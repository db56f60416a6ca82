#!/usr/bin/env bash
# What crosses between two nodes of four ranks each, where ranks of a node share rows and where they don't: network
# namespaces, whose line to each other is shaped. Ends with a table of bytes, medians and differences of losses.
# Needs root, iproute2 (ip, tc) and the tbf queue discipline; without them it says so and ends with 0.
#   HPCGNN_BENCHMARK_GRAPH     source of the shards; default: a block model of 169 k nodes
#   HPCGNN_BENCHMARK_SHARDS    of 8 parts; default: data/shards/block-model-p8; made where they are missing
#   HPCGNN_BENCHMARK_MODELS    default: "sage gcn", 3 x 256, float32
#   HPCGNN_BENCHMARK_METHODS   default: "vanilla uniform pipegcn sylvie"; uniform at 1 bit
#   HPCGNN_BENCHMARK_RATE      of the line, as tc writes it; default: 1gbit
#   HPCGNN_BENCHMARK_EPOCHS    default: 8
#   HPCGNN_BENCHMARK_OUT       default: runs/benchmark-nodes; replaced
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/two_hosts.sh
source "$here/two_hosts.sh"
require_two_hosts
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"
read -ra models <<<"${HPCGNN_BENCHMARK_MODELS:-sage gcn}"
read -ra methods <<<"${HPCGNN_BENCHMARK_METHODS:-vanilla uniform pipegcn sylvie}"
epochs=${HPCGNN_BENCHMARK_EPOCHS:-8}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-nodes}
shards=${HPCGNN_BENCHMARK_SHARDS:-data/shards/block-model-p8}
graph=${HPCGNN_BENCHMARK_GRAPH:-synthetic:nodes=169343,mean_degree=12.56,classes=40,features=128}
open_two_hosts 4
shape "${HPCGNN_BENCHMARK_RATE:-1gbit}"

[[ -f $shards/graph.h5 ]] || hpcgnn preprocess "$graph" --out "$shards" --parts 8
for model in "${models[@]}"; do
    for method in "${methods[@]}"; do
        for choice in off on; do
            bits=()
            [[ $method != uniform ]] || bits=(--bits 1)
            on_first_host env OMP_NUM_THREADS=1 "$MPIRUN" "${launch[@]}" -n 8 hpcgnn train "$shards" --model "$model" \
                --layers 3 --hidden 256 --epochs "$epochs" --eval-every "$epochs" --checkpoint-every 0 \
                --method "$method" "${bits[@]}" --set nodes_aware=$choice --out "$out/$model-$method-$choice" --overwrite
        done
    done
done
python "$here/nodes_table.py" "$out" "${models[*]}" "${methods[*]}"

#!/usr/bin/env bash
# Plans beside trainings: bytes, peak memory and seconds of an epoch, on two hosts that are network namespaces, whose line
# to each other is shaped or not. Rates are measured on the same ranks a moment before. Ends with a table.
# Needs root, iproute2 (ip, tc) and the tbf queue discipline; without them it says so and ends with 0.
#   HPCGNN_BENCHMARK_GRAPH     source of the shards; default: a block model of 169 k nodes
#   HPCGNN_BENCHMARK_RANKS     even numbers, half of them on each host; default: "2 4 8"
#   HPCGNN_BENCHMARK_RATES     of the line, as tc writes them, or none; default: "none 1gbit"
#   HPCGNN_BENCHMARK_METHODS   METHOD or METHOD:BITS; default: "vanilla uniform:8 pipegcn"
#   HPCGNN_BENCHMARK_MODEL     default: sage, 3 x 256
#   HPCGNN_BENCHMARK_PRECISION default: fp32
#   HPCGNN_BENCHMARK_EPOCHS    of a training; the first is not counted; default: 6
#   HPCGNN_BENCHMARK_OUT       default: runs/benchmark-plan; replaced
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/two_hosts.sh
source "$here/two_hosts.sh"
require_two_hosts
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"
read -ra counts <<<"${HPCGNN_BENCHMARK_RANKS:-2 4 8}"
read -ra rates <<<"${HPCGNN_BENCHMARK_RATES:-none 1gbit}"
read -ra methods <<<"${HPCGNN_BENCHMARK_METHODS:-vanilla uniform:8 pipegcn}"
model=${HPCGNN_BENCHMARK_MODEL:-sage} precision=${HPCGNN_BENCHMARK_PRECISION:-fp32}
epochs=${HPCGNN_BENCHMARK_EPOCHS:-6}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-plan}
graph=${HPCGNN_BENCHMARK_GRAPH:-synthetic:nodes=169343,mean_degree=12.56,classes=40,features=128}
rm -rf "$out"
mkdir -p "$out"

for ranks in "${counts[@]}"; do
    shards=$out/shards-$ranks
    hpcgnn preprocess "$graph" --out "$shards" --parts "$ranks" >/dev/null
    open_two_hosts "$((ranks / 2))"
    on_ranks() {
        on_first_host env OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive "$MPIRUN" "${launch[@]}" -n "$ranks" hpcgnn "$@"
    }
    for rate in "${rates[@]}"; do
        cluster=$out/$ranks-$rate.toml
        shape "$rate"
        on_ranks plan --measure "$cluster" --precision "$precision"
        python "$here/plan_table.py" share "$cluster"
        hpcgnn plan "$shards" --cluster "$cluster" --model "$model" --precision "$precision" \
            --method "$(IFS=,; echo "${methods[*]}")" --out "$out/plan-$ranks-$rate" >/dev/null
        for method in "${methods[@]}"; do
            bits=()
            [[ $method != *:* ]] || bits=(--bits "${method#*:}")
            on_ranks train "$shards" --model "$model" --layers 3 --hidden 256 --precision "$precision" \
                --epochs "$epochs" --eval-every "$epochs" --checkpoint-every 0 --method "${method%:*}" "${bits[@]}" \
                --out "$out/run-$ranks-$rate-$method" --overwrite >/dev/null
        done
    done
done
python "$here/plan_table.py" table "$out" "${counts[*]}" "${rates[*]}" "${methods[*]}"

#!/usr/bin/env bash
# Seconds to a validation score over a link: hpcgnn in steps, and DGL's neighbor sampler fetching remote features as
# DistDGL does. GraphSAGE 3 x 256, 2 ranks of one thread, each a host of its own: a network namespace, whose line to the
# other is shaped. Ends with a table.
# Needs root, iproute2 (ip, tc) and the tbf queue discipline; without them it says so and ends with 0. The peer is left
# out where DGL is not installed.
#   HPCGNN_DATASETS            folder that holds the graph's .npz file (docs/own-data.md has the format)
#   HPCGNN_BENCHMARK_GRAPH     default: ogbn_arxiv_nofeat
#   HPCGNN_BENCHMARK_SHARDS    default: data/shards/GRAPH-p2; made where they are missing
#   HPCGNN_BENCHMARK_RATES     default: "none 1gbit 200mbit", as tc writes them
#   HPCGNN_BENCHMARK_SCORES    validation scores to reach, default: "0.60 0.62 0.64"
#   HPCGNN_BENCHMARK_OURS      options of trainings, ";" between them; default: auto in float32 at 8 bits, and in bfloat16
#                              at 1 bit; 30 epochs each
#   HPCGNN_BENCHMARK_FANOUTS   of the peer, default: "5,5,5 15,10,5"
#   HPCGNN_BENCHMARK_EPOCHS    of the peer, default: 6
#   HPCGNN_BENCHMARK_DROPOUT   of both, of hidden rows and of the input, default: 0.2:0
#   HPCGNN_BENCHMARK_BATCH     training nodes of a process's batch, default: 512, so that both have 1,024
#   HPCGNN_BENCHMARK_OUT       default: runs/benchmark-score-link; replaced
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/two_hosts.sh
source "$here/two_hosts.sh"
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
require_two_hosts
graph=${HPCGNN_BENCHMARK_GRAPH:-ogbn_arxiv_nofeat}
shards=${HPCGNN_BENCHMARK_SHARDS:-data/shards/$graph-p2}
ours="--precision fp32 --method uniform --bits 8 --steps auto --set sum_bits=8 --epochs 30"
ours+=";--precision bf16 --method uniform --bits 1 --steps auto --set sum_bits=8 --epochs 30"
IFS=';' read -ra ours <<<"${HPCGNN_BENCHMARK_OURS:-$ours}"
read -ra rates <<<"${HPCGNN_BENCHMARK_RATES:-none 1gbit 200mbit}"
read -ra fanouts <<<"${HPCGNN_BENCHMARK_FANOUTS-5,5,5 15,10,5}"
dropout=${HPCGNN_BENCHMARK_DROPOUT:-0.2:0}
scores=${HPCGNN_BENCHMARK_SCORES:-0.60 0.62 0.64}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-score-link}
rm -rf "$out"
mkdir -p "$out"
make_shards "$graph" "$shards" 2
python "$here/score_link.py" export "$shards" "$out"
if ! python -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('dgl') is None)"; then
    echo "hpcgnn: the sampler is left out: DGL is not installed"
    fanouts=()
fi
preload=$(python -c "from hpcgnn.bench.environment import find_tcmalloc; print(find_tcmalloc() or '')")
open_two_hosts

for rate in "${rates[@]}"; do
    shape "$rate"
    mkdir -p "$out/$rate"
    for number in "${!ours[@]}"; do
        read -ra options <<<"${ours[number]}"
        on_first_host env OMP_NUM_THREADS=1 "$MPIRUN" "${launch[@]}" -n 2 hpcgnn train "$shards" --model sage \
            --layers 3 --hidden 256 --lr 0.003 --dropout "${dropout%:*}" --set input_dropout="${dropout#*:}" \
            --eval-every 1 --checkpoint-every 0 --out "$out/$rate/ours-$number" "${options[@]}"
        echo "hpcgnn ${ours[number]}" >"$out/$rate/ours-$number/name.txt"
    done
    for fanout in "${fanouts[@]}"; do
        on_both_hosts env LD_PRELOAD="$preload" PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" \
            python -m measurements.race.dgl_remote_sampler "$out/graph.npz" \
            "$(python "$here/score_link.py" settings "$fanout" "${HPCGNN_BENCHMARK_BATCH:-512}" \
                "${HPCGNN_BENCHMARK_EPOCHS:-6}" "$dropout")" "$out/owner.npy" >"$out/$rate/dgl-$fanout.json"
    done
done
python "$here/score_link.py" table "$out" "${rates[*]}" "$scores"

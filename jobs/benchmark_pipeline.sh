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
for tool in ip tc unshare taskset; do
    command -v "$tool" >/dev/null ||
        { echo "hpcgnn: nothing is measured: two hosts on one machine need $tool (iproute2, util-linux)"; exit 0; }
done
[[ $(id -u) == 0 ]] || { echo "hpcgnn: nothing is measured: two hosts on one machine need root"; exit 0; }

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
first=hpcgnn-a second=hpcgnn-b
first_address=10.94.41.1 second_address=10.94.41.2
# One core a host, since both are one machine; with a single core they share it.
read -ra cores <<<"$(python -c 'import os; cores = sorted(os.sched_getaffinity(0)); print(cores[0], cores[-1])')"
export HPCGNN_FIRST_HOST=$first HPCGNN_SECOND_HOST=$second HPCGNN_SECOND_ADDRESS=$second_address
export HPCGNN_FIRST_CORE=${cores[0]} HPCGNN_SECOND_CORE=${cores[1]}

remove_hosts() {
    for host in "$first" "$second"; do
        ip netns del "$host" 2>/dev/null || true
    done
}

make_hosts() {
    remove_hosts
    ip netns add "$first" && ip netns add "$second" || return 1
    ip link add line0 netns "$first" type veth peer name line0 netns "$second" || return 1
    ip -n "$first" addr add "$first_address/24" dev line0
    ip -n "$second" addr add "$second_address/24" dev line0
    for host in "$first" "$second"; do
        ip -n "$host" link set line0 up
        ip -n "$host" link set lo up
    done
}

# shape RATE: the line carries so much each way; `none` is as fast as the machine goes.
shape() {
    for host in "$first" "$second"; do
        ip netns exec "$host" tc qdisc del dev line0 root 2>/dev/null || true
        [[ $1 == none ]] || ip netns exec "$host" tc qdisc add dev line0 root tbf rate "$1" burst 256kb latency 50ms ||
            return 1
    done
}

trap remove_hosts EXIT
if ! make_hosts || ! shape 1gbit; then
    echo "hpcgnn: nothing is measured: this machine lets nobody make network namespaces with a shaped link"
    exit 0
fi

# What the library needs to reach the other host, as mpirun's options.
if [[ $MPI4PY_MPIABI == openmpi ]]; then
    launch=(--prtemca plm_ssh_agent "$here/benchmark_pipeline_agent.sh"
        --host "$first_address:1,$second_address:1" --map-by node --bind-to none
        --mca btl tcp,self --mca btl_tcp_if_include "${first_address%.*}.0/24" -x PATH -x OMP_NUM_THREADS
        -x MPI4PY_MPIABI -x LD_LIBRARY_PATH)
else
    launch=(-launcher ssh -launcher-exec "$here/benchmark_pipeline_agent.sh" -iface line0
        -hosts "$first_address,$second_address" -ppn 1)
fi

# train RATE METHOD OPTIONS...
train() {
    local run=$out/$1/$2
    shift 2
    ip netns exec "$first" taskset -c "$HPCGNN_FIRST_CORE" unshare -u bash -c 'hostname "$0" && exec "$@"' "$first" \
        env OMP_NUM_THREADS=1 "$MPIRUN" "${launch[@]}" -n 2 hpcgnn train "$shards" --model sage \
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

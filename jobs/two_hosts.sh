# Sourced by benchmarks: two hosts of one core each on one machine, network namespaces whose line to each other is shaped.
# Needs root, iproute2 (ip, tc) and the tbf queue discipline; without them `require_two_hosts` says so and ends with 0.
# Expects `here`, the folder of this file.
# shellcheck shell=bash
first=hpcgnn-a second=hpcgnn-b
first_address=10.94.41.1 second_address=10.94.41.2

# require_two_hosts: end where this machine lacks what they need.
require_two_hosts() {
    local tool
    for tool in ip tc unshare taskset; do
        command -v "$tool" >/dev/null ||
            { echo "hpcgnn: nothing is measured: two hosts on one machine need $tool (iproute2, util-linux)"; exit 0; }
    done
    [[ $(id -u) == 0 ]] || { echo "hpcgnn: nothing is measured: two hosts on one machine need root"; exit 0; }
}

# open_two_hosts [RANKS]: make them, and set `launch` to mpirun's options that reach both, with so many consecutive ranks on
# each, one by default. They go when this shell ends.
open_two_hosts() {
    local ranks=${1:-1} within=()
    # One core a host, since both are one machine; with a single core they share it.
    read -ra cores <<<"$(python -c 'import os; cores = sorted(os.sched_getaffinity(0)); print(cores[0], cores[-1])')"
    export HPCGNN_FIRST_HOST=$first HPCGNN_SECOND_HOST=$second HPCGNN_SECOND_ADDRESS=$second_address
    export HPCGNN_FIRST_CORE=${cores[0]} HPCGNN_SECOND_CORE=${cores[1]}
    trap remove_hosts EXIT
    if ! make_hosts || ! shape 1gbit; then
        echo "hpcgnn: nothing is measured: this machine lets nobody make network namespaces with a shaped link"
        exit 0
    fi
    [[ $ranks == 1 ]] || within=(,sm)
    # What the library needs to reach the other host.
    if [[ $MPI4PY_MPIABI == openmpi ]]; then
        launch=(--prtemca plm_ssh_agent "$here/benchmark_pipeline_agent.sh"
            --host "$first_address:$ranks,$second_address:$ranks" --map-by slot --bind-to none
            --mca btl "tcp,self${within[*]}" --mca btl_tcp_if_include "${first_address%.*}.0/24" -x PATH -x OMP_NUM_THREADS
            -x MPI4PY_MPIABI -x LD_LIBRARY_PATH)
    else
        launch=(-launcher ssh -launcher-exec "$here/benchmark_pipeline_agent.sh" -iface line0
            -hosts "$first_address,$second_address" -ppn "$ranks")
    fi
}

remove_hosts() {
    local host
    for host in "$first" "$second"; do
        ip netns del "$host" 2>/dev/null || true
    done
}

make_hosts() {
    local host
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
    local host
    for host in "$first" "$second"; do
        ip netns exec "$host" tc qdisc del dev line0 root 2>/dev/null || true
        [[ $1 == none ]] || ip netns exec "$host" tc qdisc add dev line0 root tbf rate "$1" burst 256kb latency 50ms ||
            return 1
    done
}

# on_host HOST CORE COMMAND...: run it there, under the host's own name.
on_host() {
    local host=$1 core=$2
    shift 2
    ip netns exec "$host" taskset -c "$core" unshare -u bash -c 'hostname "$0" && exec "$@"' "$host" "$@"
}

# on_first_host COMMAND...
on_first_host() {
    on_host "$first" "$HPCGNN_FIRST_CORE" "$@"
}

# on_both_hosts COMMAND...: two processes of torch.distributed; what the first prints.
on_both_hosts() {
    local common=(WORLD_SIZE=2 MASTER_ADDR="$first_address" MASTER_PORT=29517 GLOO_SOCKET_IFNAME=line0 OMP_NUM_THREADS=1)
    on_host "$second" "$HPCGNN_SECOND_CORE" env RANK=1 "${common[@]}" "$@" >/dev/null &
    on_host "$first" "$HPCGNN_FIRST_CORE" env RANK=0 "${common[@]}" "$@"
    wait $!
}

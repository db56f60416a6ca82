#!/usr/bin/env bash
# Of jobs/benchmark_pipeline.sh: what mpirun takes for ssh. `[OPTION...] ADDRESS COMMAND...` runs a command on the host
# of that address, under a host name of its own, on the core that the host has.
set -euo pipefail

while [[ $1 == -* ]]; do shift; done
host=$HPCGNN_FIRST_HOST core=$HPCGNN_FIRST_CORE
[[ $1 != "$HPCGNN_SECOND_ADDRESS" ]] || { host=$HPCGNN_SECOND_HOST core=$HPCGNN_SECOND_CORE; }
shift
exec ip netns exec "$host" taskset -c "$core" unshare -u bash -c "hostname $host; $*"

#!/usr/bin/env bash
# Plans epochs, and replays them with SimGrid on networks of several shapes. Ends with a table: simulated seconds beside the
# closed form and the event simulation of `hpcgnn plan`. All its seconds are simulated, so a busy machine changes none.
# Needs SimGrid 3.32 (smpirun; Debian and Ubuntu: apt-get install libsimgrid-dev); without it, it says so and ends with 0.
# Arguments: SOURCE and options of `hpcgnn plan` with the rates of a node and of a network; default: a block model of 20 k
# nodes on 64 and 256 ranks. A plan that is in the folder already is replayed as it is.
#   HPCGNN_REPLAY_PLATFORMS   switch, fat-tree, dragonfly, torus (jobs/replay.py says what they are); default: all
#   HPCGNN_REPLAY_NICS        network interfaces of a node, which share its rate: parallel links of a fat tree; default: 1
#   HPCGNN_REPLAY_OUT         default: runs/replay
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
command -v smpirun >/dev/null ||
    { echo "hpcgnn: nothing is replayed: it needs SimGrid's smpirun (apt-get install libsimgrid-dev)"; exit 0; }
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"
out=${HPCGNN_REPLAY_OUT:-runs/replay}
if [[ ! -f $out/plan.json ]]; then
    [[ $# -gt 0 ]] || set -- synthetic:nodes=20000,mean_degree=12,classes=40,features=128 --node epyc-2x64 \
        --network infiniband-hdr --set ranks_per_node=4 --parts 64,256 --method vanilla,uniform:1
    rm -rf "$out/traces"
    hpcgnn plan "$@" --out "$out" --trace "$out/traces" >/dev/null
fi
python "$here/replay.py" "$out" "${HPCGNN_REPLAY_PLATFORMS:-switch fat-tree dragonfly torus}"

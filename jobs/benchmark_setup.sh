# What the benchmarks on real graphs share; sourced by them, it runs nothing itself. Afterwards the folder is the
# repository's and the environment is there.
#   HPCGNN_DATASETS     folder that holds the .npz files (docs/own-data.md has the format)
# shellcheck shell=bash

if [[ ! -d ${HPCGNN_DATASETS:-} ]]; then
    echo "hpcgnn: HPCGNN_DATASETS is '${HPCGNN_DATASETS:-}'; set it to the folder that holds the graphs' .npz files" >&2
    exit 1
fi
datasets=$(cd -- "$HPCGNN_DATASETS" && pwd -P)
HPCGNN_EXTRAS=${HPCGNN_EXTRAS:-report},test
# shellcheck source=jobs/env.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/env.sh"
cd "$HPCGNN_ROOT" || exit 1

# make_shards GRAPH FOLDER PARTS OPTIONS...: unless they are there
make_shards() {
    local graph=$1 shards=$2 parts=$3
    shift 3
    [[ -f $shards/graph.h5 ]] ||
        hpcgnn preprocess "npz:$datasets/$graph.npz" --out "$shards" --parts "$parts" "$@"
}

# has_seeds RUN COUNT: whether the run is complete with as many seeds
has_seeds() {
    [[ -f $1/summary.json ]] &&
        python -c 'import json, sys; sys.exit(len(json.load(open(sys.argv[1]))["seeds"]) < int(sys.argv[2]))' \
            "$1/summary.json" "$2"
}

# Nodes, features and classes.
declare -A graph_sizes=([cora]="2708 1433 7" [citeseer]="3327 3703 6" [pubmed]="19717 500 3")

# target_kb DATASET MODEL BITS: nodes x columns of all layers' rows x average bits of MEGA's models, in KB; GIN has rows
# inside its layers too.
target_kb() {
    local size
    read -ra size <<<"${graph_sizes[$1]}"
    awk -v nodes="${size[0]}" -v features="${size[1]}" -v classes="${size[2]}" -v model="$2" -v bits="$3" 'BEGIN {
        columns = features + (model == "sage" ? 256 : 128) + (model == "gin" ? 128 + classes : 0)
        printf "%.3f", nodes * columns * bits / 8192
    }'
}

#!/usr/bin/env bash
# Prints what partitioners make of graphs: rows sent, cut edges, imbalances, memory and seconds (data/benchmarks/partition.md).
# Takes about a quarter of an hour, most of it METIS; arguments go to benchmark_partition.py, more graphs first:
#   HPCGNN_DATASETS=FOLDER bash jobs/benchmark_partition.sh [GRAPH ...] [--parts 2,16,128] [--partitioners kaminpar,metis]
#       [--balances both,nodes] [--sums]
# For thousands of parts: synthetic:nodes=500000,mean_degree=20 --parts 1024,4096 --balances both
#       --partitioners kaminpar,metis,metis-cut,mt-kahypar-cut
set -euo pipefail
# shellcheck source=jobs/benchmark_setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/benchmark_setup.sh"
python jobs/benchmark_partition.py "$datasets"/{ogbn_arxiv_nofeat,topo_web_notredame,topo_cnr2000}.npz "$@"

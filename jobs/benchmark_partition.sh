#!/usr/bin/env bash
# Prints what partitioners make of real graphs: rows sent, cut edges, imbalances and seconds (data/benchmarks/partition.md).
# Takes about a quarter of an hour, most of it METIS; arguments go to benchmark_partition.py:
#   HPCGNN_DATASETS=FOLDER bash jobs/benchmark_partition.sh [--parts 2,16,128] [--partitioners kaminpar,metis] [--sums]
set -euo pipefail
# shellcheck source=jobs/benchmark_setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/benchmark_setup.sh"
python jobs/benchmark_partition.py "$datasets"/{ogbn_arxiv_nofeat,topo_web_notredame,topo_cnr2000}.npz "$@"

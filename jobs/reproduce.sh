#!/usr/bin/env bash
# The tables and figures of the papers of SYLVIE and AdaQP, and the fidelity of every method, on the graphs at hand:
#   jobs/reproduce.sh                          lists them
#   jobs/reproduce.sh sylvie VII               trains what is missing, then prints the table; also fig9 and so on, or all
#   jobs/reproduce.sh fidelity [--dry-run] [--table-only]
# --dry-run prints the commands, --table-only the table of what there is. Finished runs are kept, a run that was stopped or
# has fewer seeds goes on, so call it again until it is done. docs/benchmarks.md says what stands for which graph.
#   HPCGNN_DATASETS              folder that holds the .npz files (docs/own-data.md has the format)
#   HPCGNN_REPRODUCE_SEEDS       default: 5 for fidelity, 10 for its GCN and SGC of amazon_computers, 3 for the papers
#   HPCGNN_REPRODUCE_EPOCHS      of every training, to try it; default: the graph's own. Kept apart from the whole runs
#   HPCGNN_REPRODUCE_HIDDEN      width of all models, for a machine that is too slow for the papers'. Kept apart
#   HPCGNN_REPRODUCE_LINK_MBPS   pace of a rank's link, as --set link_mbps; default: as fast as memory. Kept apart
#   HPCGNN_REPRODUCE_DATASETS    "pubmed reddit": only these, by the graph's name or the paper's; default: the table's
#   HPCGNN_REPRODUCE_MODELS, HPCGNN_REPRODUCE_METHODS, HPCGNN_REPRODUCE_RANKS    likewise
#   HPCGNN_REPRODUCE_OUT         default: runs/reproduce
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
[[ -z ${HPCGNN_DATASETS:-} ]] || HPCGNN_DATASETS=$(realpath -- "$HPCGNN_DATASETS")
[[ -z ${HPCGNN_REPRODUCE_OUT:-} ]] || HPCGNN_REPRODUCE_OUT=$(realpath -m -- "$HPCGNN_REPRODUCE_OUT")
HPCGNN_EXTRAS=${HPCGNN_EXTRAS:-report},report
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"
# reproduce.py starts ranks by it.
export -f hpcgnn_mpirun hpcgnn_set_launch hpcgnn_cores
exec python "$here/reproduce.py" "$@"

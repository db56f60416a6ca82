#!/usr/bin/env bash
# Trains by every method on many more ranks than cores, on a small graph that it makes: ranks meet two neighbors or none.
# Nothing may hang, and a ring, an Alltoallv and one peer at a time must have the same losses. 16 ranks take some 3 GB.
#   bash jobs/many_ranks.sh 64      # ranks; default: 16
#   HPCGNN_MPIRUN_SECONDS           after which a hang is ended
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/env.sh
source "$here/env.sh"
OMP_NUM_THREADS=1 hpcgnn_mpirun "${1:-16}" python "$here/many_ranks.py"

#!/usr/bin/env bash
# Try hpcgnn with faults of one kind, over and over, and print how many were tried and how many failed:
#   jobs/campaign.sh kill|disk|corrupt|reseal|io|memory|adversarial|soak|sanitize|all
#       [--minutes M] [--cases N] [--seed S] [--out DIR] [--resume] [--case K] [--mpi openmpi|mpich|both]
# Each leaves DIR/NAME.json (build/campaigns); --resume goes on after the last case that was tried, and --case K tries
# one again: case K of a seed is always the same. The exit status is 0 only when no case failed.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
HPCGNN_EXTRAS=${HPCGNN_EXTRAS:-report},test
# shellcheck source=jobs/env.sh
source "$here/env.sh"

# One thread a process: cases are tiny, and a process with threads can't be forked.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONPATH=$HPCGNN_ROOT/tests PYTHONSAFEPATH=1
exec python -m campaigns.run "$@"

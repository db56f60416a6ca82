#!/usr/bin/env bash
# Times this checkout against another one, each in its own environment, in turn: what a change costs. Prints medians of
# the seconds of an epoch and of the start (from mpirun to the first epoch), and the ratios pair by pair:
#   jobs/compare_checkouts.sh ../hpcgnn-before --ranks 1,4 --repeat 5
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/env.sh
source "$here/env.sh"
exec python "$here/compare_checkouts.py" "$HPCGNN_ROOT" "$@"

#!/usr/bin/env bash
# Trains the same 16 runs in this checkout and in another one, each in its own environment, and compares losses, bytes,
# widths, scores and weights to the last bit: what a change of the structure must leave as it was.
#   jobs/same_results.sh ../hpcgnn-before
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/env.sh
source "$here/env.sh"
exec python "$here/same_results.py" "$HPCGNN_ROOT" "$@"

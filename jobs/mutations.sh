#!/usr/bin/env bash
# Plants the faults of tests/mutations.py one by one in a copy of the package and runs the tests that must catch each.
# Prints a line a fault, and ends with status 1 where one is missed:
#   jobs/mutations.sh --only exchange/
#   jobs/mutations.sh --short      runs only those of the tests that CI runs, and so shows what CI would miss
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/env.sh
source "$here/env.sh"
exec python "$here/plant_mutations.py" "$HPCGNN_ROOT" "$@"

#!/usr/bin/env bash
# All tests: ruff, the serial ones, then those for 2, 3 and 4 MPI ranks. Arguments go to pytest: jobs/test.sh -k codec
#   HPCGNN_TEST_MPI="openmpi mpich:3"   runs the parallel tests under each of these, at 2, 3 and 4 ranks or those named
#                                       (mpich:2,4); default: the MPI of jobs/env.sh
# The last line, `N passed, N failed, N skipped`, adds up all runs; the exit status is 0 only when nothing failed.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
HPCGNN_EXTRAS=${HPCGNN_EXTRAS:-report},test
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export HPCGNN_MPIRUN_SECONDS=600
# Open MPI gives its ranks a terminal of their own, so pytest would send colors into a log file.
PY_COLORS=$([[ -t 1 ]] && echo 1 || echo 0)
export PY_COLORS
failed=0

heading() {
    printf '\n== %s (%d s)\n' "$*" "$SECONDS"
}

show_other_ranks() {
    local log
    for log in "$1"/rank-*.log; do
        [[ -s $log && ! -f ${log%.log}.passed ]] || continue
        printf '\n-- %s of the run above\n' "$(basename "$log" .log)"
        tail -n 80 "$log"
    done
}

# run_parallel MPI RANKS ARGUMENTS...
run_parallel() {
    local mpi=$1 ranks=$2 folder=$results/$1-$2
    shift 2
    mkdir "$folder"
    heading "tests at $ranks ranks, $mpi"
    hpcgnn_mpirun "$ranks" bash jobs/test_rank.sh "$folder" -m "parallel[$ranks]" "$@" ||
        printf 'mpirun ended with status %d\n' "$?"
    show_other_ranks "$folder"
}

heading "ruff"
python -m ruff check . || failed=1

read -ra mpis <<<"${HPCGNN_TEST_MPI:-}"
((${#mpis[@]})) || mpis=("")
for index in "${!mpis[@]}"; do
    mpi=${mpis[index]%%:*} counts=2,3,4
    [[ ${mpis[index]} != *:* ]] || counts=${mpis[index]#*:}
    [[ -z $mpi ]] || hpcgnn_use_mpi "$mpi"
    if ((index == 0)); then
        heading "serial tests"
        mkdir "$results/serial-1"
        # A process a core; the tests of a file stay in one, since they share fixtures. Two threads each, that do not spin.
        OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMP_WAIT_POLICY=passive bash jobs/test_rank.sh "$results/serial-1" \
            -m "parallel[1]" --numprocesses auto --maxprocesses 8 --dist loadfile "$@" || true
    fi
    for ranks in ${counts//,/ }; do
        run_parallel "${mpi:-$MPI4PY_MPIABI}" "$ranks" "$@"
    done
done

heading "all runs"
python jobs/count_tests.py "$results" || failed=1
exit "$failed"

#!/usr/bin/env bash
# All tests: ruff and mypy, then the serial ones and, beside or after them, those for 2, 3 and 4 MPI ranks. Arguments go
# to pytest: jobs/test.sh -k codec. Files that are named run without mypy, and without ranks where no test is for ranks.
#   --all                               runs also the tests that are marked long, which take most of the time: before a
#                                       release, and after a change of what they name
#   HPCGNN_TEST_MPI="openmpi mpich:3:exchange,faults"   runs the parallel tests under each of these, at 2, 3 and 4 ranks
#                                       or those named (mpich:2,4), all of them or those of the folders and files of
#                                       tests/ that are named; default: the MPI of jobs/env.sh
# The last line, `N passed, N failed, N skipped`, adds up all runs; the exit status is 0 only when nothing failed.
set -euo pipefail

# Each of hundreds of processes would compile all modules again.
unset PYTHONDONTWRITEBYTECODE

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
HPCGNN_EXTRAS=${HPCGNN_EXTRAS:-report},test
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"

results=$(mktemp -d) files=
trap 'rm -rf "$results"* "$files"' EXIT
# Tests write many small files and wait until they are on the disk: those lie in memory, where there is room for them.
read -r _ room < <(df -k --output=target,avail /dev/shm 2>/dev/null | tail -n 1) || room=0
memory=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null) || memory=0
if [[ -z ${PYTEST_DEBUG_TEMPROOT:-} && -w /dev/shm ]] && ((${room:-0} >= 4 << 20 && ${memory:-0} >= 8 << 20)); then
    files=$(mktemp -d -p /dev/shm hpcgnn-tests-XXXXXX)
    export PYTEST_DEBUG_TEMPROOT=$files
fi
export HPCGNN_MPIRUN_SECONDS=1800     # a slow machine takes a third of it
# Open MPI gives its ranks a terminal of their own, so pytest would send colors into a log file.
PY_COLORS=$([[ -t 1 ]] && echo 1 || echo 0)
export PY_COLORS
# Where the servers' sockets lie that tests of commands fork from: all processes share the servers, which end with it.
export HPCGNN_TEST_SERVERS=$results.servers
failed=0 serial=()

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

# The files and folders of tests that are named.
places=()
for word; do
    [[ ! -e ${word%%::*} ]] || places+=("${word%%::*}")
done

# Whether a test may be for ranks: one in a named place, or any where none is named.
needs_ranks() {
    ((${#places[@]} == 0)) || grep -rq --include='*.py' 'mark\.parallel' "${places[@]}"
}

heading "ruff"
python -m ruff check . || failed=1
# Beside the serial tests: 20 s of one core where nothing is kept from last time.
types=
((${#places[@]})) || { python -m mypy >"$results.mypy" 2>&1 & types=$!; }

# run_all_parallel ARGUMENTS...: under each MPI, each number of ranks. Ranks wait for each other for half of their time,
# in which they leave their cores to others: two runs are under way at once, the longest ones first.
run_all_parallel() {
    local entry mpi counts named room rooms ranks number=0
    for entry in "${mpis[@]}"; do
        IFS=: read -r mpi counts named <<<"$entry"
        counts=${counts:-3,2,4} rooms=()
        # A test that is asked for by its place is run, whatever its folder.
        if ((${#places[@]} == 0)); then
            for room in ${named//,/ }; do
                rooms+=("tests/$room")
            done
        fi
        [[ -z $mpi ]] || hpcgnn_use_mpi "$mpi"
        for ranks in ${counts//,/ }; do
            ((number < 2)) || wait -n || true
            number=$((number + 1))
            run_parallel "${mpi:-$MPI4PY_MPIABI}" "$ranks" "$@" "${rooms[@]}" >"$results.run-$number" &
        done
    done
    wait
    cat "$results".run-*
}

read -ra mpis <<<"${HPCGNN_TEST_MPI:-}"
((${#mpis[@]})) || mpis=("")
[[ -z ${mpis[0]} ]] || hpcgnn_use_mpi "${mpis[0]%%:*}"

# In a process group that ends with this script. What they print is shown when they have ended.
start_parallel() {
    set -m
    OMPI_MCA_mpi_yield_when_idle=1 MPIR_CVAR_ENABLE_HEAVY_YIELD=1 run_all_parallel "$@" >"$results.log" 2>&1 </dev/null &
    beside=$!
    set +m
    trap 'kill -- "-$beside" 2>/dev/null || true; rm -rf "$results"* "$files"' EXIT
}

# The parallel tests run beside the serial ones where there are cores for both. On few cores they come after them: ranks
# look for messages again and again, and so take from serial tests what they then wait for.
cores=$(hpcgnn_cores) beside=
((cores < 4)) || ! needs_ranks || start_parallel "$@"

heading "serial tests"
# A process a core and one more, since some tests wait for the end of others' processes; each takes one file after
# another. Two threads each, that do not spin.
processes=$((cores < 8 ? cores + 1 : 8)) claims=$results.claims
if ((${#places[@]})); then
    num_files=$(find "${places[@]}" -name 'test_*.py' | wc -l)
    ((num_files >= processes)) || processes=$((num_files > 1 ? num_files : 1))
fi
mkdir "$results/serial-$processes" "$claims"
for ((process = 0; process < processes; process++)); do
    HPCGNN_TEST_PROCESS=$process OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMP_WAIT_POLICY=passive \
        bash jobs/test_rank.sh "$results/serial-$processes" -m "parallel[1]" "--claims=$claims" "$@" &
    serial+=($!)
done
wait "${serial[@]}" || true
show_other_ranks "$results/serial-$processes"
heading "serial tests have ended"
((cores >= 4)) || ! needs_ranks || start_parallel "$@"
if [[ -n $types ]]; then
    heading "mypy"
    wait "$types" || failed=1
    cat "$results.mypy"
fi
if [[ -n $beside ]]; then
    wait "$beside" || failed=1
    cat "$results.log"
fi

heading "all runs"
python jobs/count_tests.py "$results" || failed=1
exit "$failed"

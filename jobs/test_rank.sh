#!/usr/bin/env bash
# One rank of a test run: test_rank.sh FOLDER PYTEST-ARGUMENTS... leaves rank-R.xml, and rank-R.log but for rank 0.
# HPCGNN_TEST_PROCESS=R makes it one of several processes that share the serial tests.
# A failed test does not end the rank with an error, which would make mpirun stop the others before they have reported.
set -uo pipefail

folder=$1
shift
rank=${HPCGNN_TEST_PROCESS:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-0}}}}
result=$folder/rank-$rank
[[ $rank == 0 ]] || exec >"$result.log" 2>&1

# A test that hangs, because another rank failed and left it, shows where it stands and is ended.
# It is a fork of a process with libraries loaded, where jobs/test.sh has named a folder for one.
jobs=$(dirname -- "${BASH_SOURCE[0]}")
PYTHONPATH=$jobs${PYTHONPATH:+:$PYTHONPATH} python -I -S "$jobs/../tests/fork_server.py" -m pytest -q \
    -p rank_tests -p no:cacheprovider --junitxml="$result.xml" \
    -o faulthandler_timeout=240 -o faulthandler_exit_on_timeout=true "$@"
status=$?

# 0: all passed, 1: some failed, 5: no test for this number of ranks. Anything else is a crash.
case $status in
    0 | 5) : >"$result.passed" ;;
    1) ;;
    *) exit "$status" ;;
esac
[[ -f $result.xml ]]

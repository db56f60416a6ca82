"""A pytest plugin for runs under mpirun, loaded by jobs/test_rank.sh.

It knows the marks that jobs/test.sh selects by, and reports a failure when it happens. No fixture belongs here.
"""

import sys

from mpi4py import MPI

RANK_COUNTS = (1, 2, 3, 4)


def pytest_configure(config):
    """Register parallel[N] also where no collected test has it, so that -k and a path may select tests of one N."""
    for ranks in RANK_COUNTS:
        config.addinivalue_line("markers", f"parallel[{ranks}]: runs at this number of ranks")


def pytest_ignore_collect(collection_path):
    """Leave out, on several ranks, files without a parallel test: they would be read on every rank for nothing."""
    if MPI.COMM_WORLD.size > 1 and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return True if "parallel" not in collection_path.read_text() else None
    return None


def pytest_runtest_logreport(report):
    """Print a failure at once: a rank whose peers hang never reaches its summary."""
    if report.failed and MPI.COMM_WORLD.size > 1:
        print(f"\nfailed: {report.nodeid} ({report.when})\n{report.longreprtext}", file=sys.__stderr__, flush=True)

"""A pytest plugin that prints a failure when it happens, since a rank whose peers hang never reaches its summary.

Nothing else belongs here; jobs/test.sh loads it in parallel runs.
"""

import sys


def pytest_runtest_logreport(report):
    """Print where and why a test failed to standard error, of which every rank keeps its own."""
    if report.failed:
        print(f"\nfailed: {report.nodeid} ({report.when})\n{report.longreprtext}", file=sys.__stderr__, flush=True)

"""A pytest plugin for the runs of jobs/test.sh, loaded by jobs/test_rank.sh.

It knows the marks that are selected by, begins with the files that take the longest, and reports a failure of a rank
when it happens. No fixture belongs here.
"""

import gc
import re
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

RANK_COUNTS = (1, 2, 3, 4)
# Files of few tests that take long, the longest first, so that no process is busy with one while the others have ended.
LONGEST = ("cli/test_without_avx512.py", "test_docs.py", "cli/test_bench.py", "faults/test_process_faults.py",
           "emulated/test_aarch64.py", "test_examples.py", "test_compilers.py", "test_watchdog.py",
           "cuda/test_compile.py", "jobs/test_reproduce.py", "report/test_page.py", "shards/test_folder.py",
           "library/test_program.py", "training/test_precision.py", "cli/test_doctor.py",
           "faults/test_method_faults.py", "training/test_alike.py", "test_packaging.py", "bench/test_dram.py",
           "cli/test_report.py", "training/test_resume_bits.py")


# While 20,000 tests are collected, next to nothing becomes garbage; searching for it would take half of the time.
gc.disable()


def pytest_configure(config):
    """Register parallel[N] also where no collected test has it, so that -k and a path may select tests of one N."""
    for ranks in RANK_COUNTS:
        config.addinivalue_line("markers", f"parallel[{ranks}]: runs at this number of ranks")
    config.option.loadscopereorder = False    # pytest-xdist would begin with the files of the most tests


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    """Collect garbage from now on, but for what is there to stay: libraries and tests."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Put the files that take the longest first."""
    tests = Path(__file__).parents[1] / "tests"
    place = {tests / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_ignore_collect(collection_path):
    """Leave out, on several ranks, files without a test for so many: every rank would read them for nothing."""
    if MPI.COMM_WORLD.size > 1 and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return None if may_have_tests_for(MPI.COMM_WORLD.size, collection_path.read_text()) else True
    return None


def may_have_tests_for(ranks: int, source: str) -> bool:
    """Whether a mark of a file names so many ranks, or is not written out as a list of numbers."""
    marks = re.findall(r"\bparallel\b(?:\(\[([\d, ]+)\]\))?", source)
    return any(not listed or str(ranks) in re.findall(r"\d+", listed) for listed in marks)


def pytest_runtest_logreport(report):
    """Print a failure at once: a rank whose peers hang never reaches its summary."""
    if report.failed and MPI.COMM_WORLD.size > 1:
        print(f"\nfailed: {report.nodeid} ({report.when})\n{report.longreprtext}", file=sys.__stderr__, flush=True)

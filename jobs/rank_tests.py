"""A pytest plugin for the runs of jobs/test.sh, loaded by jobs/test_rank.sh.

It knows the marks that are selected by, begins with the files that take the longest, and reports a failure of a rank
when it happens. No fixture belongs here.
"""

import gc
import inspect
import re
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

TESTS = Path(__file__).parents[1] / "tests"
RANK_COUNTS = (1, 2, 3, 4)
FOLDERS: dict[Path, pytest.Dir] = {}
WANTED: list[Path] = []      # the file of tests that is read now, where files are read one by one
CONFTESTS: dict[Path, object] = {}      # of folders that are not collected yet
# Files of few tests that take long, the longest first, so that no process is busy with one while the others have ended.
LONGEST = ("faults/test_process_faults.py", "test_docs.py", "cuda/test_compile.py", "lowbit/inference/test_device.py",
           "cli/test_without_avx512.py", "cli/test_bench.py", "test_watchdog.py", "jobs/race/test_peer_processes.py",
           "library/test_preprocess.py", "cli/test_preprocess.py", "shards/test_folder.py", "library/test_program.py",
           "jobs/race/test_time_to_score.py", "bench/test_epoch_in_process.py", "bench/test_accelerator.py",
           "faults/test_preprocess_faults.py", "jobs/test_installation.py")


def pytest_addoption(parser):
    parser.addoption("--claims", type=Path, help="a folder, empty at first, where processes that run the same tests "
                                                 "note which files of tests they have begun; each takes one by one")


def pytest_configure(config):
    """Register parallel[N] also where no collected test has it, so that -k and a path may select tests of one N."""
    for ranks in RANK_COUNTS:
        config.addinivalue_line("markers", f"parallel[{ranks}]: runs at this number of ranks")
    gc.disable()    # while tests are collected, next to nothing becomes garbage; searching for it would take long


def pytest_collection(session):
    """With --claims, collect nothing yet."""
    return True if session.config.option.claims else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Collect garbage from now on, but for what is there to stay; with --claims, read and run file after file."""
    gc.freeze()
    gc.enable()
    return run_claimed(session, session.config.option.claims) if session.config.option.claims else None


def run_claimed(session, claims: Path) -> bool:
    """Run the tests of each file that no other process has claimed."""
    num_tests, fixtures = 0, session._fixturemanager
    # From 9.1 on, pytest forgets after the first files those conftest.py that it has loaded for the others.
    CONFTESTS.update(getattr(fixtures, "_pending_conftests", {}))
    for argument in test_files(session.config.args):
        try:
            (claims / argument.replace("/", "|")).touch(exist_ok=False)
        except FileExistsError:
            continue
        if CONFTESTS:
            fixtures._pending_conftests.update(CONFTESTS)
        WANTED[:] = [Path(argument.partition("::")[0]).absolute()]
        gc.collect()    # of the last file; frozen, a cycle would keep what it holds, as a hook of autograd
        gc.disable()
        items = list(session.perform_collect([argument]))
        num_tests += len(items)
        gc.freeze()
        gc.enable()
        for item, following in zip(items, [*items[1:], None], strict=False):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
    session.testscollected = num_tests
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(path):
    """Keep one node for each folder: the fixtures of its conftest.py belong to the node that is made first."""
    made = yield
    return FOLDERS.setdefault(path, made)


def pytest_collectstart(collector):
    """Now pytest reads the fixtures of this folder."""
    CONFTESTS.pop(collector.path, None)


def test_files(arguments: list[str]) -> list[str]:
    """Pytest's arguments, with a folder's files of tests in its place; those that take the longest come first."""
    found = [str(file) for argument in arguments
             for file in (sorted(Path(argument).rglob("test_*.py")) if Path(argument).is_dir() else [argument])]
    return sorted(dict.fromkeys(found), key=lambda file: place(Path(file.partition("::")[0]).absolute()))


def place(file: Path) -> int:
    """The place of a file in LONGEST, or one behind them."""
    return next((number for number, name in enumerate(LONGEST) if file == TESTS / name), len(LONGEST))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Put the files that take the longest first."""
    items.sort(key=lambda item: place(item.path))


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, obj):
    """Leave out tests that are for other numbers of ranks than there are, unless one is asked for by its name."""
    ranks = marked_ranks(obj)
    is_for_others = ranks is not None and MPI.COMM_WORLD.size not in ranks
    return [] if is_for_others and not any("::" in word for word in collector.config.args) else None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """Make no case for other numbers of ranks than there are, but where a covering chooses among them."""
    if metafunc.definition.get_closest_marker("covering"):
        return
    parametrize = metafunc.parametrize
    metafunc.parametrize = lambda names, values, *rest, **named: parametrize(
        names, [ranks for ranks in values if ranks == MPI.COMM_WORLD.size] or values if names == "_nprocs" else values,
        *rest, **named)


def marked_ranks(test) -> list[int] | None:
    """The numbers of ranks that a function is marked with; None where it has no such mark, which stands for 1."""
    if not inspect.isfunction(test):
        return None
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parallel"]
    if not marks:
        return [1] if test.__name__.startswith("test_") else None
    named = (*marks[0].args, *marks[0].kwargs.values(), 3)[0]    # mpi-pytest runs a bare mark at 3
    return [named] if isinstance(named, int) else list(named)


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path):
    """Leave out, on several ranks, files without a test for so many, which every rank would read for nothing; and all
    files but the one that is wanted.
    """
    if WANTED:
        return None if collection_path == WANTED[0] or collection_path in WANTED[0].parents else True
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

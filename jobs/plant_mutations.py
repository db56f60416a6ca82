"""Plant the faults of tests/mutations.py and run the tests that must catch them; see jobs/mutations.sh."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

LIMIT_SECONDS = 120
HANG_SECONDS = 20      # after which a rank whose peers have left it shows where it stands and ends
PASSED, FAILED, ELSEWHERE = 0, 1, 70
NO_TEST = {4}, {5}      # pytest's statuses where no test is for so many ranks, by its version
COPIED = ("hpcgnn", "tests", "jobs", "data", "pyproject.toml")


def copy_checkout(root: Path, copy: Path) -> None:
    """What tests read: package with compiled kernels, tests, data."""
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, copy / name, symlinks=True,
                            ignore=shutil.ignore_patterns("__pycache__", "*.h5"))
        else:
            shutil.copy2(root / name, copy / name)


def run_tests(copy: Path, tests, is_mutated: bool, options: list[str]) -> tuple[str, str]:
    """Run tests in the copy: "passed", "failed", "no test", or what else happened, and what they printed."""
    statuses = copy / "statuses"
    shutil.rmtree(statuses, ignore_errors=True)
    statuses.mkdir()
    words = [f"tests/{word}" if word.partition("::")[0].endswith(".py") else word
             for word in shlex.split(tests.arguments)]
    rank = [sys.executable, "jobs/plant_mutations.py", "--rank", *options, *words]
    if tests.ranks > 1:
        rank = [*launch(tests.ranks), *rank, "-m", f"parallel[{tests.ranks}]"]
    # Bytes of a mutated file are compiled anew and never kept; those of the others are kept by the runs before.
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1",
                   "OMPI_MCA_mpi_yield_when_idle": "1", "PYTHONDONTWRITEBYTECODE": "1" if is_mutated else ""}
    process = subprocess.Popen(rank, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", start_new_session=True)
    try:
        said, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"no end in {LIMIT_SECONDS} s", process.communicate()[0]
    return outcome({int(path.read_text()) for path in statuses.iterdir()}, process.returncode, tests.ranks,
                   len(list(statuses.iterdir()))), said


def launch(num_ranks: int) -> list[str]:
    """The launcher that the tests use, for so many ranks."""
    from parallel_run import is_open_mpi, launcher

    return [launcher(), *(["--bind-to", "none"] if is_open_mpi() else []), "-n", str(num_ranks)]


def outcome(found: set[int], status: int, num_ranks: int, num_ended: int) -> str:
    """What the ranks' statuses say; a rank that mpirun stopped, since another one failed, has left none."""
    if ELSEWHERE in found:
        sys.exit("hpcgnn was not imported from the copy, so nothing would be tested")
    if FAILED in found and found <= {PASSED, FAILED}:
        return "failed"
    if found == {PASSED} and status == 0 and num_ended == num_ranks:
        return "passed"
    return "no test" if found in NO_TEST else f"pytest's {sorted(found)}, status {status}"


class FirstFailure:
    """A plugin that ends the rank where a test fails: its peers may wait for it, and it for them."""

    def pytest_runtest_logreport(self, report):
        if report.failed:
            print(report.nodeid, report.longreprtext, flush=True)
            end_rank(FAILED)


def end_rank(status: int) -> None:
    """Leave the rank's status in a file, since mpirun's tells of no rank, and end without a wait for the others."""
    Path("statuses", str(os.getpid())).write_text(str(status))
    sys.stdout.flush()
    os._exit(status)


def run_rank(arguments: list[str]) -> None:
    """One rank: pytest until the first failure."""
    import pytest

    import hpcgnn

    if Path(hpcgnn.__file__).resolve().parent != Path.cwd().resolve() / "hpcgnn":
        end_rank(ELSEWHERE)
    status = pytest.main(["-q", "--color=no", "--capture=no", "-p", "no:cacheprovider", "-o",
                          f"faulthandler_timeout={HANG_SECONDS}", "-o", "faulthandler_exit_on_timeout=true",
                          *arguments], plugins=[FirstFailure()])
    if status != PASSED:
        end_rank(int(status))
    Path("statuses", str(os.getpid())).write_text("0")


@contextmanager
def planted(copy: Path, mutation):
    """The copy with one fault, while the block lasts."""
    try:
        file, changed = mutation.plant(copy / "hpcgnn")
    except LookupError as reason:
        sys.exit(str(reason))
    source, times = file.read_text(), file.stat()
    file.write_text(changed)
    try:
        yield
    finally:
        file.write_text(source)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def check_unmutated(copy: Path, mutations: list, options: list[str]) -> None:
    """End where tests fail without any fault, or where there is none among all."""
    for tests in dict.fromkeys(mutation.caught_by for mutation in mutations):
        found, said = run_tests(copy, tests, is_mutated=False, options=options)
        if found != "passed" and not (options and found == "no test"):
            sys.exit(f"{said[-3000:]}\nwithout a fault: {found}: {tests}")


def plant_all(copy: Path, mutations: list, options: list[str]) -> list:
    """Print a row for each fault; those that were missed."""
    missed = []
    print("| file | fault | | seconds |\n|---|---|---|---|")
    for mutation in mutations:
        started = time.monotonic()
        with planted(copy, mutation):
            found, _ = run_tests(copy, mutation.caught_by, is_mutated=True, options=options)
        if found != "failed":
            missed.append(mutation)
        answer = {"failed": "caught", "passed": "MISSED"}.get(found, f"MISSED: {found}")
        print(f"| {mutation.file} | {mutation.fault} | {answer} | {time.monotonic() - started:.1f} |", flush=True)
    return missed


def main() -> None:
    """See the module."""
    if sys.argv[1] == "--rank":
        run_rank(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--only", default="", help="faults whose file or description has this text")
    parser.add_argument("--short", action="store_true", help="run only those of the tests that CI runs, no long one")
    arguments = parser.parse_args()
    options = ["--unnamed"] if arguments.short else []
    sys.path.insert(0, str(arguments.root / "tests"))
    from mutations import MUTATIONS

    mutations = [mutation for mutation in MUTATIONS if arguments.only in f"{mutation.file}: {mutation.fault}"]
    if not mutations:
        sys.exit(f"no fault has {arguments.only!r} in its file or description")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        copy_checkout(arguments.root, Path(scratch))
        check_unmutated(Path(scratch), mutations, options)
        print(f"all tests pass without a fault, {time.monotonic() - started:.0f} s", flush=True)
        missed = plant_all(Path(scratch), mutations, options)
    print(f"{len(mutations) - len(missed)} of {len(mutations)} faults caught, {time.monotonic() - started:.0f} s")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

"""jobs/rank_tests.py and jobs/test.sh: which tests run first, and under which MPI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from covering import long_but
from fork_server import served

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "jobs"))

from rank_tests import LONGEST, RANK_COUNTS, may_have_tests_for, pytest_collection_modifyitems  # noqa: E402


@pytest.mark.parametrize("name", LONGEST)
def test_a_file_that_is_begun_early_is_there(name):
    assert (ROOT / "tests" / name).is_file()


def test_files_that_take_long_come_first_in_the_order_of_the_list():
    names = ["test_config.py", LONGEST[4], "test_docs.py", LONGEST[2], LONGEST[4]]
    items = [SimpleNamespace(path=ROOT / "tests" / name, number=number) for number, name in enumerate(names)]
    pytest_collection_modifyitems(items)
    assert [item.number for item in items] == [2, 3, 1, 4, 0]


@pytest.mark.parametrize("words", long_but([1], [["."], ["b", "a/test_a.py", "a/test_b.py"]]))
def test_processes_that_share_claims_run_each_file_once_and_find_its_fixtures(tmp_path, words):
    marked = "import pytest\n@pytest.mark.parallel([1, 2])\ndef test_a(word): assert word == 'b'\n"
    for room in ("a", "b"):
        (tmp_path / room).mkdir()
        for name, source in {"conftest.py": "import pytest\n@pytest.fixture\ndef word(): return 'b'\n",
                             "test_a.py": marked, "test_b.py": marked.replace("1, 2", "2, 3")}.items():
            (tmp_path / room / name).write_text(source)
    (tmp_path / "claims").mkdir()
    command = served(["-m", "pytest", "-p", "rank_tests", "--claims", "claims", "-m", "parallel[1]", "-q",
                      "--import-mode=importlib", *words])
    processes = [subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE,
                                  env={**os.environ, "PYTHONPATH": str(ROOT / "jobs")}) for _ in range(2)]
    said = [process.communicate()[0] for process in processes]
    assert {process.returncode for process in processes} <= {0, 5}, said
    assert sum(int(count) for text in said for count in re.findall(r"(\d+) passed", text)) == 2, said


@pytest.mark.parametrize("source, found", [
    ("@pytest.mark.parallel([1, 2, 3])\n@pytest.mark.parallel([2])", (1, 2, 3)), ("@pytest.mark.parallel([12])", ()),
    ("@pytest.mark.parallel(RANKS)", RANK_COUNTS), ("pytestmark = pytest.mark.parallel", RANK_COUNTS),
    ("from hpcgnn.run.launch import run_parallel", ()),
])
def test_a_file_is_read_where_a_mark_may_name_the_number_of_ranks(source, found):
    assert tuple(ranks for ranks in RANK_COUNTS if may_have_tests_for(ranks, source)) == found


# Stands for everything that jobs/test.sh starts; prints each parallel run.
STAND_INS = """
source() { :; }
python() { return 0; }
mktemp() { command mktemp -d "$SCRATCH/XXXX"; }
hpcgnn_use_mpi() { MPI4PY_MPIABI=$1; }
hpcgnn_cores() { echo 2; }
hpcgnn_mpirun() { echo "$MPI4PY_MPIABI $1: ${*:5}"; }
bash() { echo "serial ${*:3}"; }
HPCGNN_ROOT=$SCRATCH_ROOT MPI4PY_MPIABI=own
"""


@pytest.mark.parametrize("mpis, arguments, expected", [
    ("", [], ["own 3: -m parallel[3]", "own 2: -m parallel[2]", "own 4: -m parallel[4]"]),
    ("openmpi mpich:3", ["-k", "codec"],
     [*(f"openmpi {n}: -m parallel[{n}] -k codec" for n in (3, 2, 4)), "mpich 3: -m parallel[3] -k codec"]),
    ("mpich:2,4:exchange,faults", [],
     [f"mpich {n}: -m parallel[{n}] tests/exchange tests/faults" for n in (2, 4)]),
    ("mpich:3:exchange", ["tests/test_launch.py::test_x"], ["mpich 3: -m parallel[3] tests/test_launch.py::test_x"]),
])
def test_parallel_tests_run_under_every_mpi_at_its_ranks_and_of_its_folders(tmp_path, mpis, arguments, expected):
    script = STAND_INS + (ROOT / "jobs/test.sh").read_text()
    environment = {**os.environ, "HPCGNN_TEST_MPI": mpis, "SCRATCH": str(tmp_path), "SCRATCH_ROOT": str(ROOT)}
    done = subprocess.run(["bash", "-c", script, str(ROOT / "jobs/test.sh"), *arguments], env=environment,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if ": -m parallel" in line] == expected

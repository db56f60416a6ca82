"""tests/mpi_environment.py: tests run from a shell that has sourced nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONE_TEST = "tests/test_units.py"      # pytest's plugin for ranks loads MPI, the test itself nothing


@pytest.mark.skipif(not Path(sys.prefix, "hpcgnn.stamp").exists(), reason="jobs/env.sh has not made this environment")
def test_one_test_runs_in_a_shell_that_knows_no_mpi(tmp_path):
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ONE_TEST], cwd=ROOT,
                          env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

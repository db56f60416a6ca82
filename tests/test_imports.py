"""What is imported, and when: `import hpcgnn` and help bring neither torch nor NumPy, SciPy nor MPI."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "scipy", "mpi4py", "h5py", "rich", "matplotlib")
SHOW = f"import sys; print('imported:', *sorted(sys.modules.keys() & {set(HEAVY)!r}))"


def imported_by(program: str) -> list[str]:
    """Which of the heavy packages are there after a program has ended, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", f"try:\n    {program}\nexcept SystemExit:\n    pass\n{SHOW}"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_the_package_alone_brings_nothing_heavy():
    assert imported_by("import hpcgnn; hpcgnn.__version__; dir(hpcgnn)") == []


def test_public_names_bring_what_they_need_when_they_are_used():
    assert "mpi4py" in imported_by("import hpcgnn; hpcgnn.open")
    assert imported_by("import hpcgnn; hpcgnn.HpcgnnError") == []


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["train", "--help-all"],
                                   ["launch", "--help"],
                                   ["preprocess", "--help"], ["inspect", "--help"], ["predict", "--help"],
                                   ["export", "--help"], ["quantize", "--help"], ["infer", "--help"],
                                   ["watch", "--help"], ["report", "--help"], ["doctor", "--help"],
                                   ["bench", "--help"], ["bench", "kernels", "--help"]])
def test_help_brings_nothing_heavy(words):
    assert imported_by(f"from hpcgnn.__main__ import main; main({words!r})") == []

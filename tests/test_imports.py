"""What is imported, and when: `import hpcgnn` and help bring neither torch nor NumPy, SciPy nor MPI."""

from __future__ import annotations

import subprocess
import sys

from fork_server import served

HEAVY = ("torch", "numpy", "scipy", "mpi4py", "h5py", "rich", "matplotlib")
SHOW = f"import sys; print('imported:', *sorted(sys.modules.keys() & {set(HEAVY)!r}))"


HELP = [["--help"], ["--version"], ["train", "--help"], ["train", "--help-all"], ["launch", "--help"],
        ["preprocess", "--help"], ["inspect", "--help"], ["predict", "--help"], ["export", "--help"],
        ["quantize", "--help"], ["infer", "--help"], ["watch", "--help"], ["report", "--help"], ["doctor", "--help"],
        ["bench", "--help"], ["bench", "kernels", "--help"]]


def imported_by(programs: list[str], command=(sys.executable,)) -> list[list[str]]:
    """Which of the heavy packages are there after each of the programs, which one process runs."""
    body = "".join(f"try:\n    {program}\nexcept SystemExit:\n    pass\n{SHOW}\n" for program in programs)
    done = subprocess.run([*command, "-c", body], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("imported:")]


def test_neither_the_package_nor_its_errors_nor_help_bring_anything_heavy():
    programs = ["import hpcgnn; hpcgnn.__version__; dir(hpcgnn)", "hpcgnn.HpcgnnError",
                *(f"from hpcgnn.__main__ import main; main({words!r})" for words in HELP)]
    assert [pair for pair in zip(programs, imported_by(programs), strict=True) if pair[1]] == []


def test_public_names_bring_what_they_need_when_they_are_used():
    """A server's process has torch, and no MPI."""
    before, after = imported_by(["import hpcgnn", "hpcgnn.open"], served([]))
    assert "mpi4py" not in before and "mpi4py" in after

"""jobs/gpu_check.sh: what it refuses, that no part stops another, and what its last line and status say.

A stand-in for the interpreter notes what it is asked to run; which parts fail is up to the test.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "jobs/gpu_check.sh"
TOOLS = ("bash", "dirname", "env", "mkdir", "tee", "timeout", "sleep")
PARTS = ["build", "tests of kernels", "tests of exchange and training", "nvcc", "memcheck", "racecheck",
         "benchmark of bits", "benchmark of inference", "benchmark of kernels"]
# Of a part's command, a word that no other has.
WORDS = dict(zip(PARTS, ("setup.py", "test_emulation", "tests/exchange", "-k nvcc", "--tool memcheck",
                         "--tool racecheck", "bench bits", "--repeat 10 inference", "bench kernels"), strict=True))

spec = importlib.util.spec_from_file_location("gpu_prerequisites", ROOT / "jobs/gpu_prerequisites.py")
prerequisites = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prerequisites)


def write_program(path, text):
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path):
    """A clone with nothing but the script, a PATH with nothing but what it calls, and one graph."""
    for folder in ("jobs", "bin", "graphs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "graphs/pubmed.npz").touch()
    shutil.copy(SCRIPT, tmp_path / "jobs")
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    note = f'echo "$*" >>"{tmp_path}/asked"\n[[ -z ${{FAILING:-}} || "$0 $*" != *$FAILING* ]] || {{ $HOW; }}\n'
    write_program(tmp_path / "bin/python3", '''case "$*" in
*gpu_prerequisites.py*) echo "Stand-in 9000"; exit 0 ;;
-c*) for name in "${@:3}"; do [[ " ${MISSING:-} " != *" $name "* ]] || exit 1; done; exit 0 ;;
esac
''' + note)
    for tool in ("nvcc", "compute-sanitizer"):
        write_program(tmp_path / "bin" / tool, note)
    return tmp_path


def check(clone, **environment):
    """Status, printed lines, and the commands that were asked for."""
    done = subprocess.run([clone / "jobs/gpu_check.sh"], capture_output=True, text=True, cwd="/", timeout=60,
                          env={"PATH": str(clone / "bin"), "HOW": "exit 3", "HPCGNN_DATASETS": str(clone / "graphs"),
                               **environment})
    asked = clone / "asked"
    return done.returncode, done.stdout.splitlines(), asked.read_text().splitlines() if asked.exists() else []


def test_all_parts_run_and_the_results_name_the_machine(clone):
    (clone / "graphs/ogbn_arxiv_nofeat.npz").touch()
    status, lines, asked = check(clone, OUT=str(clone / "out"))
    assert status == 0
    assert lines[0] == "Stand-in 9000" and lines[-1] == "9 parts passed, 0 failed, 0 left out"
    assert [line[3:] for line in lines if line.startswith("== ")] == PARTS
    assert all(WORDS[part] in command for part, command in zip(PARTS, asked, strict=True))
    assert asked[-3] == f"-m hpcgnn bench bits --device cuda --out {clone}/out/bits"
    assert asked[-2] == (f"-m hpcgnn bench --repeat 10 inference {clone}/graphs/pubmed.npz --device cuda --peer torch "
                         f"--out {clone}/out/inference")
    assert asked[-1] == ("-m hpcgnn bench kernels --device cuda --peer torch --widths 64,256 "
                         f"--precision fp32,fp16,bf16 --out {clone}/out/kernels "
                         f"{clone}/graphs/ogbn_arxiv_nofeat.npz drawn:100e6")
    assert "topo_uk2007_100k.npz is not in HPCGNN_DATASETS; the benchmarks go without it" in lines
    assert (clone / "out/gpu-check.log").read_text().splitlines() == lines


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_stops_no_other(clone, part):
    status, lines, asked = check(clone, FAILING=WORDS[part])
    assert status == 1
    assert len(asked) == len(PARTS)
    assert any(line.startswith(f"-- {part} failed after ") and line.endswith(" with status 3") for line in lines)
    assert lines[-2:] == [f"failed: [{part}]", "8 parts passed, 1 failed, 0 left out"]


def test_a_part_that_hangs_is_ended_at_its_limit(clone):
    script = clone / "jobs/gpu_check.sh"
    script.write_text(script.read_text().replace('part "nvcc" 40', 'part "nvcc" 1'))
    status, lines, asked = check(clone, FAILING=WORDS["nvcc"], HOW="sleep 30")
    assert status == 1 and len(asked) == len(PARTS)
    assert any(re.fullmatch(r"-- nvcc failed after \d s with status 124, its limit of 1 s", line) for line in lines)


def test_the_limits_are_under_eight_minutes():
    limits = dict(re.findall(r'^ *part "([^"]+)" (\d+) ', SCRIPT.read_text(), flags=re.MULTILINE))
    both_tools = limits.pop("$tool")
    assert set(limits) == set(PARTS) - {"memcheck", "racecheck"}
    assert sum(map(int, limits.values())) + 2 * int(both_tools) <= 470


def test_tools_and_packages_that_are_not_there_are_left_out(clone):
    for tool in ("nvcc", "compute-sanitizer"):
        (clone / "bin" / tool).unlink()
    status, lines, asked = check(clone, MISSING="h5py pytest_mpi xdist", HPCGNN_DATASETS="")
    assert status == 0 and lines[-1] == "4 parts passed, 0 failed, 5 left out"
    assert "== benchmark of inference: left out, pubmed.npz is not in HPCGNN_DATASETS" in lines
    assert not any("parallel" in command or "numprocesses" in command for command in asked)


def test_a_python_that_is_not_there_is_one_sentence(clone):
    done = subprocess.run([clone / "jobs/gpu_check.sh"], capture_output=True, text=True,
                          env={"PATH": str(clone / "bin"), "HPCGNN_PYTHON": "no_python"})
    assert done.returncode == 1 and not (clone / "build").exists()
    assert done.stderr == "gpu_check: there is no no_python; set HPCGNN_PYTHON to a Python with torch and cupy\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_refused_in_one_sentence(tmp_path):
    done = subprocess.run([SCRIPT], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "HPCGNN_PYTHON": sys.executable, "OUT": str(tmp_path / "out")})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("gpu_check: can't run on this machine: ") and done.stderr.count("\n") == 1
    assert "finds no CUDA device" in done.stderr and not (tmp_path / "out").exists()


class FakeCupy(types.ModuleType):
    """A cupy whose compiler says what it is given to say."""

    def __init__(self, complaint=None):
        super().__init__("cupy")
        self.complaint = complaint

    def RawModule(self, code, options):
        if self.complaint:
            raise RuntimeError(self.complaint)
        return types.SimpleNamespace(get_function=lambda name: name)


@pytest.fixture
def complete(monkeypatch):
    """A machine that lacks nothing, as far as the checks can see."""
    monkeypatch.setattr(prerequisites.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(prerequisites.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(prerequisites.Path, "is_file", lambda path: True)
    monkeypatch.setattr(prerequisites, "version", lambda project: "77.0.3")
    monkeypatch.setattr(prerequisites, "lacks_of_mpi", lambda: iter(()))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())


def test_a_complete_machine_lacks_nothing(complete):
    assert prerequisites.lacks() == []


def test_a_setuptools_that_cannot_read_the_project_is_told(complete, monkeypatch):
    monkeypatch.setattr(prerequisites, "version", lambda project: "68.1.2")
    assert prerequisites.lacks() == ["setuptools 68.1.2 is older than 77"]


def test_everything_that_is_missing_is_told_at_once(complete, monkeypatch, capsys):
    monkeypatch.setattr(prerequisites.importlib.util, "find_spec", lambda name: None if name == "mpi4py" else name)
    monkeypatch.setattr(prerequisites.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy("cannot open source file cuda_fp16.h\nmore"))
    monkeypatch.setenv("CC", "icx -O3")
    assert prerequisites.main() == 1
    assert capsys.readouterr().err == (
        f"gpu_check: can't run on this machine: {sys.executable} has no mpi4py; there is no C compiler (icx); "
        "cupy can't compile a kernel (cannot open source file cuda_fp16.h)\n")


def test_a_missing_gpu_is_told_beside_a_missing_cupy(complete, monkeypatch):
    monkeypatch.setattr(prerequisites.importlib.util, "find_spec", lambda name: None if name == "cupy" else name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert prerequisites.lacks() == [f"{sys.executable} has no cupy",
                                     f"torch {torch.__version__} finds no CUDA device"]


def test_the_sanitizer_gets_the_first_case_of_each_test_on_the_device(tmp_path):
    (tmp_path / "test_few.py").write_text('''
import pytest
@pytest.fixture
def device():
    return "cuda"
@pytest.mark.parametrize("n", [1, 2, 3])
def test_many(device, n):
    assert n == 1
def test_one(device):
    pass
def test_none():
    raise AssertionError
''')
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "short_selection", "-p", "no:cacheprovider",
                           str(tmp_path)], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "jobs")})
    assert "2 passed, 3 deselected" in done.stdout, done.stdout

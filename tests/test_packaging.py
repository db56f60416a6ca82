"""What is installed has its kernels: an sdist holds all that a build needs; an installation without them says so.

`jobs/check_packages.sh` builds the packages, installs them into new environments and trains there.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from fork_server import served
from parallel_run import clean_environment

import hpcgnn
from hpcgnn.registry import tomllib

pytest.importorskip("Cython", reason="setup.py needs Cython: pip install 'hpcgnn[test]'")

ROOT = Path(__file__).parents[1]
PARTS = ("ext", "hpcgnn", "jobs", "examples", "setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md",
         "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "data/registry.toml", "docs", "mkdocs.yml")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.so", "*.pyc")


def test_the_citation_names_this_version():
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {hpcgnn.__version__}\n" in cited and "\ncff-version: 1.2.0\n" in f"\n{cited}"


def python(*arguments, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=240)


def copy_sources(target):
    """The sources as a checkout has them, without what was built in them."""
    for part in PARTS:
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, target / part, symlinks=True, ignore=NOT_SOURCES)
        else:
            shutil.copy(ROOT / part, target / part)


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".pyc")}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Folder of the unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    copy_sources(folder / "checkout")
    built = python("setup.py", "-q", "sdist", "-d", folder, folder=folder / "checkout")
    assert built.returncode == 0, built.stderr
    archive, = folder.glob("hpcgnn-*.tar.gz")
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def without_kernels(unpacked):
    """Folder with the Python part of an installation from the sdist."""
    installed = unpacked.parent / "installed"
    built = python("setup.py", "-q", "build_py", "--build-lib", installed, folder=unpacked)
    assert built.returncode == 0, built.stderr
    return installed


@pytest.mark.parametrize("folder", ["ext", "jobs", "examples", "docs"])
def test_an_sdist_has_every_file_of_the_checkout(unpacked, folder):
    assert files_below(unpacked / folder) == files_below(ROOT / folder)


@pytest.mark.long      # the files that it needs are compared above
def test_an_sdist_can_make_an_sdist_again(unpacked, tmp_path):
    assert python("setup.py", "-q", "sdist", "-d", tmp_path, folder=unpacked).returncode == 0
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as members:
        names = {name.partition("/")[2] for name in members.getnames() if not name.endswith("/")}
    assert {f"ext/{name}" for name in files_below(ROOT / "ext")} <= names


def test_an_installation_from_the_sdist_has_every_file_of_the_package(without_kernels):
    assert files_below(without_kernels / "hpcgnn") == files_below(ROOT / "hpcgnn")


def test_a_copy_without_kernels_is_not_built(unpacked, tmp_path):
    shutil.copytree(unpacked, tmp_path / "copy", ignore=shutil.ignore_patterns("*.pyx"))
    built = python("setup.py", "-q", "bdist_wheel", folder=tmp_path / "copy")
    assert built.returncode != 0
    assert "has no .pyx file, so the kernels can't be built; take a complete copy" in built.stderr
    assert "Traceback" not in built.stderr


@pytest.mark.parametrize("levels", ["avx2,all", ","])
def test_levels_that_there_are_not_are_not_built(monkeypatch, levels):
    monkeypatch.setenv("HPCGNN_LEVELS", levels)
    built = python("setup.py", "--version", folder=ROOT)
    assert built.returncode == 1
    assert built.stderr == f"hpcgnn: HPCGNN_LEVELS is {levels!r}; expected all, or some of portable, avx2, avx512\n"


def test_the_command_that_tries_each_wheel_trains_without_mpi(tmp_path):
    """In cibuildwheel's containers there is no MPI library."""
    command = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]["test-command"]
    (tmp_path / "hpcgnn").write_text(f'#!/bin/sh\nexec {shlex.join(served(["-m", "hpcgnn"]))} "$@"\n')
    (tmp_path / "hpcgnn").chmod(0o755)
    environment = {name: value for name, value in clean_environment().items() if name != "MPI4PY_MPIABI"}
    environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    tried = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert tried.returncode == 0, tried.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["versions"]["mpi"] == "no MPI, one rank"


def test_an_installation_without_kernels_says_so_in_one_sentence(without_kernels):
    refused = python("-m", "hpcgnn", "preprocess", "synthetic:nodes=100", "--parts", "1", "--out", "graph",
                     folder=without_kernels)
    assert refused.returncode == 1
    line, = refused.stderr.splitlines()
    assert line.startswith(f"hpcgnn: the compiled kernels of hpcgnn can't be loaded from {without_kernels}")
    assert "build them again from complete sources" in line


def test_kernels_of_another_python_are_refused_as_missing(without_kernels, tmp_path):
    shutil.copytree(without_kernels, tmp_path / "installed")
    (tmp_path / "installed/hpcgnn/_ext/simd.cpython-27-other.so").touch()
    refused = python("-c", "import hpcgnn._ext.simd", folder=tmp_path / "installed")
    assert "KernelError: the compiled kernels of hpcgnn can't be loaded from" in refused.stderr


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["wheels"], "what to check is 'wheels'; expected sdist, wheel or both"),
    (["wheel", "3.99"], "there is no Python 3.99; install it as python3.99, or by `uv python install 3.99`")])
def test_packages_are_checked_only_for_pythons_that_there_are(arguments, sentence):
    refused = subprocess.run(["bash", str(ROOT / "jobs/check_packages.sh"), *arguments], capture_output=True, text=True)
    assert refused.returncode == 1 and f"check_packages: {sentence}\n" in refused.stderr
    assert "made" not in refused.stdout


def test_a_wheel_is_made_for_each_python_that_the_package_names():
    """Only versions that are built and tried are named; a later one must be added in both places."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = {line.rpartition(" :: ")[2] for line in project["project"]["classifiers"]
             if line.startswith("Programming Language :: Python :: 3.")}
    built = {f"3.{word[3:].partition('-')[0]}" for word in project["tool"]["cibuildwheel"]["build"].split()}
    assert named == built and f">={min(named, key=lambda name: int(name[2:]))}" == project["project"]["requires-python"]

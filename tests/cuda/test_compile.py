"""Every kernel compiles without a warning: by nvcc for three generations of devices, and under the emulation."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from cuda.emulation import CACHE, COMPILER, library_of

from hpcgnn.ops.cuda.module import KERNELS
from hpcgnn.ops.cuda.signatures import signatures_of

SOURCES = sorted(KERNELS.glob("*.cu"))
TEST_SOURCES = sorted(Path(__file__).parent.rglob("*.cu"))
ARCHITECTURES = (75, 80, 90)


def test_there_are_kernels_to_compile():
    assert {"quantization.cu"} <= {source.name for source in SOURCES}


@pytest.mark.parametrize("source", [*SOURCES, *TEST_SOURCES], ids=lambda source: source.name)
def test_nvcc_compiles_for_every_architecture(source):
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    # Not optimized: this asks whether each device has what a kernel uses, in half the time.
    options = ["-std=c++17", "-fatbin", "-Werror", "all-warnings", "-Xcicc", "-O0", "-Xptxas", "-O0", f"-I{KERNELS}",
               *(f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in ARCHITECTURES)]
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    seen = hashlib.sha256(repr((version, options)).encode())
    for read in [source, *sorted(KERNELS.glob("*.cuh"))]:
        seen.update(read.read_bytes())
    compiled = CACHE / f"{seen.hexdigest()[:24]}-{source.stem}.fatbin"    # of an earlier run, where nothing changed
    if not compiled.exists():
        CACHE.mkdir(exist_ok=True)
        done = subprocess.run(["nvcc", *options, "-o", str(compiled), str(source)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert compiled.stat().st_size > 0


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_host_compiler_takes_every_kernel_and_python_knows_its_parameters(source):
    """Kernels are the functions of C linkage; one whose parameters aren't found could not be launched."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not installed: kernels can't be emulated")
    symbols = subprocess.run(["nm", "--defined-only", "--format=posix", str(library_of(source).with_suffix(".o"))],
                             capture_output=True, text=True, check=True).stdout
    functions = {line.split()[0] for line in symbols.splitlines() if line.split()[1] == "T"}
    kernels = {name for name in functions if not name.startswith(("_Z", "emulate_"))}
    assert kernels == set(signatures_of(source.read_text()))
    assert {f"emulate_{name}" for name in kernels} <= functions

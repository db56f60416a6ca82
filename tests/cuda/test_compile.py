"""Every kernel compiles without a warning, by nvcc and NVRTC for several generations of devices and by the host's."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from cuda import toolkit
from cuda.emulation import CACHE, COMPILER, library_of

from hpcgnn.ops.cuda.module import KERNELS, signatures_of

SOURCES = sorted(KERNELS.glob("*.cu"))
TEST_SOURCES = sorted(Path(__file__).parent.rglob("*.cu"))
ARCHITECTURES = (75, 80, 90)
# Bytes that may be spilled, the most by NVRTC 12.8 and 12.9: the bounds on registers of these let more blocks share a
# multiprocessor. Wide sums spill on sm_100 alone; a block less would spill nothing, and took 10 % longer on an H200.
SPILLED = {"quantize_rotated": 28, "dequantize_rotated": 80, "gather": 20, "aggregate_wide": 36,
           "aggregate_wide_heads": 48, "aggregate_wide_packed": 28}


@pytest.mark.long      # beside it NVRTC and ptxas compile for three generations of devices
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


@pytest.mark.covering(1)
@pytest.mark.parametrize("architecture", toolkit.LIMITS)
@pytest.mark.parametrize("source", [
    pytest.param(source, id=source.name, marks=() if source.stem == "quantization" else pytest.mark.long)
    for source in SOURCES])
def test_optimized_kernels_fit_the_registers_of_every_device(source, architecture):
    if toolkit.parts() is None:
        pytest.skip("NVIDIA's wheels of NVRTC and ptxas are not installed: pip install 'hpcgnn[toolkit]'")
    found = toolkit.needs_of(source, architecture)
    assert set(found) == set(signatures_of(source.read_text()))
    for name, needs in found.items():
        assert needs.spilled <= SPILLED.get(name.rsplit("_", 1)[0], 0), (name, needs)
        assert needs.registers <= 136 and needs.shared_bytes <= 48 << 10, name


def test_occupancy_is_what_the_scarcest_resource_leaves():
    assert toolkit.Needs(32, 0, 0).occupancy(90, 256) == 1.0
    assert toolkit.Needs(64, 0, 0).occupancy(90, 256) == 0.5         # 65,536 registers
    assert toolkit.Needs(33, 0, 0).occupancy(90, 1024) == 0.5        # 40 registers, and one block of 32 warps
    assert toolkit.Needs(16, 0, 47 << 10).occupancy(80, 128) == 3 * 4 / 64
    assert toolkit.Needs(16, 0, 0).occupancy(80, 32) == 0.5          # 32 blocks of a warp
    assert toolkit.Needs(16, 0, 0).occupancy(90, 128, 75 << 10) == 3 * 4 / 64

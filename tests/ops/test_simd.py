"""The instruction set is the one asked for, or the start is refused."""

import importlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import SIMD_FLAGS, processor_flags

import hpcgnn._ext
from hpcgnn._ext import simd as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.simd import LEVELS, simd_level


def test_the_best_level_is_taken_where_none_is_forced(monkeypatch):
    monkeypatch.delenv("HPCGNN_SIMD", raising=False)
    assert simd_level() == LEVELS[kernels.supported_level()]


def test_a_forced_level_is_taken(simd):
    assert simd_level() == simd


@pytest.mark.parametrize("name", ["sse9", "AVX2", ""])
def test_an_unknown_level_is_refused(monkeypatch, name):
    monkeypatch.setenv("HPCGNN_SIMD", name)
    with pytest.raises(KernelError, match=r"HPCGNN_SIMD is .*this processor and build have portable"):
        simd_level()


def test_a_level_that_the_processor_lacks_is_refused(monkeypatch):
    monkeypatch.setattr("hpcgnn.ops.simd.kernels", stand_in(supported=0, processor=0, built={0, 1, 2}))
    monkeypatch.setenv("HPCGNN_SIMD", "avx2")
    with pytest.raises(KernelError, match=r"have portable$"):
        simd_level()


def stand_in(supported, processor, built):
    return SimpleNamespace(supported_level=lambda: supported, processor_level=lambda: processor,
                           is_built=built.__contains__)


@pytest.mark.parametrize("supported, built, forced, usable", [
    (2, {2}, "avx2", "avx512"), (2, {2}, "portable", "avx512"), (2, {0, 2}, "avx2", "portable, avx512"),
    (1, {1}, "avx512", "avx2")])
def test_a_level_that_the_build_lacks_is_refused(monkeypatch, supported, built, forced, usable):
    monkeypatch.setattr("hpcgnn.ops.simd.kernels", stand_in(supported, 2, built))
    monkeypatch.setenv("HPCGNN_SIMD", forced)
    with pytest.raises(KernelError, match=rf"^HPCGNN_SIMD is '{forced}'; this processor and build have {usable}; "
                                          rf"to build {forced} too, run `HPCGNN_LEVELS=all source jobs/env.sh`$"):
        simd_level()


def test_a_build_without_a_level_for_this_processor_does_not_start(monkeypatch):
    monkeypatch.setattr(hpcgnn._ext, "simd", stand_in(supported=-1, processor=1, built={2}))
    with pytest.raises(KernelError, match=r"need instructions that this processor lacks; .*HPCGNN_LEVELS=all"):
        importlib.reload(hpcgnn._ext)


@pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="there is no gcc for x86")
@pytest.mark.parametrize("built", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}])
def test_kernels_take_the_best_level_of_their_build_unless_another_of_them_is_forced(tmp_path, built):
    source, bits = tmp_path / "level.c", sum(1 << level for level in built)
    source.write_text('#include <stdio.h>\n#include "simd.h"\nint main(void) { printf("%d", simd_level()); }')
    subprocess.run(["gcc", f"-DHPCGNN_BUILT={bits}", "-I", Path(__file__).parents[2] / "ext/src", source,
                    "-o", tmp_path / "level"], check=True)
    usable = [level for level in built if SIMD_FLAGS[LEVELS[level]] <= processor_flags()]
    for forced, name in enumerate(LEVELS):
        expected = forced if forced in usable else max(usable, default=-1)
        found = subprocess.run([tmp_path / "level"], env={**os.environ, "HPCGNN_SIMD": name}, capture_output=True,
                               text=True, check=True)
        assert int(found.stdout) == expected, name


@pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="there is no gcc for x86")
@pytest.mark.covering(1)
@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("name", ["bit_gemm", "combination", "peaks"])    # which have more levels than the three
def test_a_kernel_file_compiles_for_one_level_alone(name, bits):
    subprocess.run(["gcc", "-std=c11", "-fopenmp", "-Wall", "-Werror", "-Wno-psabi", f"-DHPCGNN_BUILT={bits}",
                    "-fsyntax-only", Path(__file__).parents[2] / f"ext/src/{name}.c"], check=True)

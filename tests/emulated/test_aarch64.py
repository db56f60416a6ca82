"""Kernels for aarch64, made by a cross compiler and run under user-mode emulation, leave the bits of this machine.

All kernel files are compiled; those that tests/emulated/kernels.c calls are run, under GCC vectors of NEON's width.
"""

from __future__ import annotations

import platform
import shutil

import pytest
from kernel_program import NUM_HASHES, OTHERS, RUN, compile_alone, hashes, hashes_of_the_installed, program

CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"

SOURCES = [RUN[0], *(pytest.param(name, marks=pytest.mark.long) for name in (*RUN[1:], "program", *OTHERS))]
pytestmark = [
    pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"there is no {CROSS}"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="this machine is no x86-64")]


@pytest.mark.parametrize("name", SOURCES)
def test_a_kernel_file_compiles_for_aarch64_without_a_warning(name):
    (made,) = compile_alone(CROSS, name)
    assert made.stat().st_size > 0


@pytest.mark.long
@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"there is no {EMULATOR}")
def test_kernels_leave_the_bits_of_this_machine(tmp_path):
    here = hashes_of_the_installed(tmp_path)
    there = hashes([EMULATOR, program(CROSS, tmp_path, "-static")])
    assert len(here) == NUM_HASHES
    assert there == here

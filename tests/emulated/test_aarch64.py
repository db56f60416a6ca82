"""Kernels for aarch64, made by a cross compiler and run under user-mode emulation, leave the bits of this machine.

All kernel files are compiled; those that tests/emulated/kernels.c calls are run, under GCC vectors of NEON's width.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=c11", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi", "-I", ROOT / "ext/src"]
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
RUN = ("adam", "aggregation", "code_aggregation", "column_sums", "dense", "pointwise", "quantization")
SECONDS = 300

pytestmark = [
    pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"there is no {CROSS}"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="this machine is no x86-64")]


def compiled(compiler, names, folder, *flags):
    """Object files of kernels, and of the program where it is among the names."""
    objects = []
    for name in names:
        source = ROOT / "ext/src" / f"{name}.c" if name != "program" else Path(__file__).with_name("kernels.c")
        objects.append(folder / f"{name}.o")
        subprocess.run([compiler, *FLAGS, *flags, "-c", source, "-o", objects[-1]], check=True, timeout=SECONDS)
    return objects


def hashes(command, **environment):
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS,
                          env={**os.environ, "OMP_NUM_THREADS": "2", **environment})
    return done.stdout.splitlines()


def program(compiler, folder, *flags):
    objects = compiled(compiler, (*RUN, "program"), folder, "-O1")
    subprocess.run([compiler, "-fopenmp", *flags, *objects, "-lm", "-o", folder / "kernels"], check=True)
    return folder / "kernels"


def test_every_kernel_file_compiles_for_aarch64_without_a_warning(tmp_path):
    others = [path.stem for path in sorted((ROOT / "ext/src").glob("*.c")) if path.stem not in RUN]
    assert len(compiled(CROSS, others, tmp_path, "-O0", "-Wall", "-Werror")) == len(others) > 10


@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"there is no {EMULATOR}")
def test_kernels_leave_the_bits_of_this_machine(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here = hashes([program("gcc", tmp_path / "here")])
    there = hashes([EMULATOR, program(CROSS, tmp_path / "there", "-static")])
    assert len(here) == 3 * 10 + 4
    assert there == here

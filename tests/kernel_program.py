"""Kernels made by any C compiler, with a program that prints hashes of what they compute; see emulated/kernels.c."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLAGS = ["-std=c11", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi", "-I", ROOT / "ext/src"]
RUN = ("adam", "aggregation", "code_aggregation", "column_sums", "dense", "pointwise", "quantization")
OTHERS = tuple(path.stem for path in sorted((ROOT / "ext/src").glob("*.c")) if path.stem not in RUN)
NUM_HASHES = 3 * 10 + 4
SECONDS = 300


def compiled(compiler, names, folder, *flags):
    """Object files of kernels, and of the program where it is among the names."""
    objects = []
    for name in names:
        source = ROOT / "ext/src" / f"{name}.c" if name != "program" else ROOT / "tests/emulated/kernels.c"
        objects.append(folder / f"{name}.o")
        subprocess.run([compiler, *FLAGS, *flags, "-c", source, "-o", objects[-1]], check=True, timeout=SECONDS)
    return objects


def hashes(command, **environment):
    """What the program prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS,
                          env={**os.environ, "OMP_NUM_THREADS": "2", **environment})
    return done.stdout.splitlines()


def program(compiler, folder, *flags):
    """Path of the program, its kernels compiled without a warning."""
    objects = compiled(compiler, (*RUN, "program"), folder, "-O1", "-Wall", "-Werror")
    subprocess.run([compiler, "-fopenmp", *flags, *objects, "-lm", "-o", folder / "kernels"], check=True)
    return folder / "kernels"

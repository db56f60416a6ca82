"""Kernels made by any C compiler, with a program that prints hashes of what they compute; see emulated/kernels.c."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLAGS = ["-std=c11", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi", "-I", ROOT / "ext/src"]
RUN = ("adam", "aggregation", "code_aggregation", "column_sums", "dense", "pointwise", "quantization")
OTHERS = tuple(path.stem for path in sorted((ROOT / "ext/src").glob("*.c")) if path.stem not in RUN)
PROGRAM = ROOT / "tests/emulated/kernels.c"
NUM_HASHES = 3 * 14 + 4
SECONDS = 600
CACHE = Path(tempfile.gettempdir()) / f"hpcgnn-kernels-{os.getuid()}"
# The program as a library finds its kernels in those modules that were loaded before it, for all to see.
RUN_INSTALLED = f"""
import ctypes, importlib, os, sys
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
for name in {RUN!r}:
    importlib.import_module("hpcgnn._ext." + name)
ctypes.CDLL(sys.argv[1]).main()
"""


@cache
def digest_of(compiler):
    """Digest of a compiler's version and of all sources, by which object files of earlier tests are found."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    sources = [*sorted((ROOT / "ext/src").iterdir()), PROGRAM]
    return hashlib.sha256(version + b"".join(source.read_bytes() for source in sources))


def compiled(compiler, names, *flags):
    """Object files of kernels, and of the program where it is among the names; each is compiled once."""
    CACHE.mkdir(exist_ok=True)
    seen = digest_of(compiler).copy()
    seen.update(repr((FLAGS, flags)).encode())
    objects = [CACHE / f"{seen.hexdigest()[:24]}-{name}.o" for name in names]
    for name, made in zip(names, objects, strict=True):
        source = PROGRAM if name == "program" else ROOT / "ext/src" / f"{name}.c"
        if not made.exists():
            unfinished = made.with_suffix(f".{os.getpid()}.o")
            subprocess.run([compiler, *FLAGS, *flags, "-c", source, "-o", unfinished], check=True, timeout=SECONDS)
            unfinished.rename(made)
    return objects


def compile_alone(compiler, name):
    """Object file of a kernel as the tests of its compiler take it, so that no test waits for many of them."""
    flag = "-O0" if name in OTHERS else "-O1"
    return compiled(compiler, (name,), flag, "-Wall", "-Werror")


def hashes(command, **environment):
    """What the program prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS,
                          env={**os.environ, "OMP_NUM_THREADS": "2", **environment})
    return done.stdout.splitlines()


def program(compiler, folder, *flags):
    """Path of the program, its kernels compiled without a warning."""
    objects = compiled(compiler, (*RUN, "program"), "-O1", "-Wall", "-Werror")
    subprocess.run([compiler, "-fopenmp", *flags, *objects, "-lm", "-o", folder / "kernels"], check=True)
    return folder / "kernels"


def hashes_of_the_installed(folder, **environment):
    """What the program prints with the kernels that hpcgnn itself computes with."""
    library = folder / "kernels.so"
    subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", PROGRAM, "-o", library], check=True, timeout=SECONDS)
    return hashes([sys.executable, "-c", RUN_INSTALLED, library], PYTHONPATH=str(ROOT), **environment)

"""Build every `ext/NAME.pyx`, with its C source `ext/src/NAME.c`, into `hpcgnn._ext.NAME`.

`HPCGNN_BOUNDS_CHECK=1` turns Cython's bounds checks on; `CFLAGS` is honoured as usual.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

BOUNDS_CHECK = os.environ.get("HPCGNN_BOUNDS_CHECK", "0") == "1"
# -ffp-contract=off: every SIMD variant, and later the device, rounds alike.
# Vectors wider than a level's registers never cross a call: the functions that take them are inlined (-Wno-psabi).
# GCC 12 takes vector stores of inlined loops into 128-byte buffers for overflows (a false positive; clang is silent).
COMPILE_ARGS = ["-O3", "-g0", "-std=c11", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-Wall",
                "-Wno-stringop-overflow", "-Wno-psabi"]


def build_extension(source: Path) -> Extension:
    kernels = source.parent / "src" / f"{source.stem}.c"
    sources = [str(source)] + ([str(kernels)] if kernels.exists() else [])
    return Extension(
        f"hpcgnn._ext.{source.stem}",
        sources,
        include_dirs=["ext/src"],
        depends=[str(header) for header in source.parent.glob("src/*.h")],
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=["-fopenmp"],
    )


setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    packages=[
        "hpcgnn", "hpcgnn._ext", "hpcgnn.adaptive", "hpcgnn.bench", "hpcgnn.bench.peers", "hpcgnn.cli",
        "hpcgnn.datasets", "hpcgnn.exchange", "hpcgnn.graph", "hpcgnn.inference", "hpcgnn.nn", "hpcgnn.ops",
        "hpcgnn.ops.host", "hpcgnn.partition", "hpcgnn.quantized", "hpcgnn.report", "hpcgnn.shards", "hpcgnn.training",
    ],
    # hpcgnn/data is a link to data/, so that the registry is found in a checkout and in an installed package alike.
    package_data={"hpcgnn": ["data/registry.toml"], "hpcgnn.report": ["*.html"]},
    ext_modules=cythonize(
        [build_extension(source) for source in sorted(Path("ext").glob("*.pyx"))],
        build_dir="build/cython",
        compiler_directives={"language_level": 3, "boundscheck": BOUNDS_CHECK, "wraparound": False,
                             "initializedcheck": False, "cdivision": True},
    ),
)

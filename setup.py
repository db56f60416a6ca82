"""Build every `ext/NAME.pyx`, with its C source `ext/src/NAME.c`, into `hpcgnn._ext.NAME`.

`HPCGNN_BOUNDS_CHECK=1` turns Cython's bounds checks on; `CFLAGS` is honoured as usual.
"""

import os
import re
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

BOUNDS_CHECK = os.environ.get("HPCGNN_BOUNDS_CHECK", "0") == "1"
# -ffp-contract=off: every SIMD variant, and later the device, rounds alike.
# Vectors wider than a level's registers never cross a call: the functions that take them are inlined (-Wno-psabi).
# GCC 12 takes vector stores of inlined loops into 128-byte buffers for overflows (a false positive; clang is silent).
CYTHON_FOLDER = "build/cython"
COMPILE_ARGS = ["-O3", "-g0", "-std=c11", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-Wall",
                "-Wno-stringop-overflow", "-Wno-psabi"]


class BuildExtensions(build_ext):
    """Compiles on all cores, unless --parallel says otherwise; pip gives no options on.

    Cython's shells only pass arguments on: they are optimized little, which halves the time that they compile.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        compile_one = self.compiler._compile

        def compile_source(obj, source, extension, cc_args, extra_postargs, pp_opts):
            is_shell = Path(CYTHON_FOLDER) in Path(source).parents
            compile_one(obj, source, extension, cc_args, [*extra_postargs, *(["-O1"] if is_shell else [])], pp_opts)

        self.compiler._compile = compile_source
        super().build_extensions()


def files_named_in(source: Path, found: set[Path]) -> set[Path]:
    """`found`, with the files of ext/ that a source includes or names, and those that they do."""
    for name in re.findall(r'"([\w.]+\.(?:h|c|pxi))"', source.read_text()):
        for path in (source.parent / name, Path("ext/src") / name):
            if path.exists() and path not in found:
                found.add(path)
                files_named_in(path, found)
    return found


def build_extension(source: Path) -> Extension:
    kernels = source.parent / "src" / f"{source.stem}.c"
    sources = [str(source)] + ([str(kernels)] if kernels.exists() else [])
    return Extension(
        f"hpcgnn._ext.{source.stem}",
        sources,
        include_dirs=["ext/src"],
        depends=sorted(map(str, files_named_in(source, set()) | files_named_in(Path(sources[-1]), set()))),
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=["-fopenmp"],
    )


setup(
    cmdclass={"build_ext": BuildExtensions},
    packages=[
        "hpcgnn", "hpcgnn._ext", "hpcgnn.adaptive", "hpcgnn.bench", "hpcgnn.bench.peers", "hpcgnn.cli",
        "hpcgnn.datasets", "hpcgnn.exchange", "hpcgnn.graph", "hpcgnn.inference", "hpcgnn.nn", "hpcgnn.ops",
        "hpcgnn.ops.cuda", "hpcgnn.ops.host", "hpcgnn.partition", "hpcgnn.quantized", "hpcgnn.report", "hpcgnn.shards",
        "hpcgnn.training",
    ],
    # hpcgnn/data is a link to data/, so that the registry is found in a checkout and in an installed package alike.
    package_data={"hpcgnn": ["data/registry.toml"], "hpcgnn.ops.cuda": ["kernels/*.cu", "kernels/*.cuh"],
                  "hpcgnn.report": ["*.html"]},
    ext_modules=cythonize(
        [build_extension(source) for source in sorted(Path("ext").glob("*.pyx"))],
        build_dir=CYTHON_FOLDER,
        compiler_directives={"language_level": 3, "boundscheck": BOUNDS_CHECK, "wraparound": False,
                             "initializedcheck": False, "cdivision": True},
    ),
)

"""Build every `ext/NAME.pyx`, with its C source `ext/src/NAME.c`, into `hpcgnn._ext.NAME`.

`HPCGNN_BOUNDS_CHECK=1` turns Cython's bounds checks on, `HPCGNN_SANITIZE=1` builds under the address and the
undefined-behavior sanitizer (`jobs/sanitize.sh` does); `CC` and `CFLAGS` are honored as usual, `CC="ccache gcc"` too.
`HPCGNN_LEVELS=avx512`, or several of `portable,avx2,avx512`, builds these SIMD levels alone (`jobs/env.sh` asks for
this machine's best one); all if unset. `HPCGNN_KERNELS_IN_PLACE=1` builds none, for an editable installation beside
`build_ext --inplace` (`jobs/install.sh`).
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

BOUNDS_CHECK = os.environ.get("HPCGNN_BOUNDS_CHECK", "0") == "1"
SANITIZE = os.environ.get("HPCGNN_SANITIZE", "0") == "1"
LEVELS = os.environ.get("HPCGNN_LEVELS") or "all"
KERNELS_IN_PLACE = os.environ.get("HPCGNN_KERNELS_IN_PLACE", "0") == "1"
# -ffp-contract=off: every SIMD variant, and later the device, rounds alike.
# Vectors wider than a level's registers never cross a call: the functions that take them are inlined (-Wno-psabi).
# GCC 12 takes vector stores of inlined loops into 128-byte buffers for overflows (a false positive; clang is silent).
CYTHON_FOLDER = "build/cython"
COMPILE_ARGS = ["-O3", "-g0", "-std=c11", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wno-psabi"]
GCC_ARGS = ["-Wno-stringop-overflow"]
# Their loops say where they must be unrolled, so these are as fast with -O2, and compile three times as fast.
UNROLLED = {"aggregation": ["-O2"], "dense": ["-O2"]}
# The first fault ends the process: no kernel computes on with what is undefined.
SANITIZE_ARGS = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
LINK_ARGS = ["-fopenmp", *(["-fsanitize=address,undefined"] if SANITIZE else [])]
SHELL_ARGS = ["-O0" if SANITIZE else "-O1"]
LEVEL_BITS = {"portable": 1, "avx2": 2, "avx512": 4}    # of HPCGNN_BUILT in ext/src/simd.h
SHARED = "hpcgnn._ext._shared"      # what all shells need of Cython, compiled once
# Those that compile for the longest begin first, so that no core waits for one of them in the end.
LONGEST = ("aggregation", "quantization", "pointwise", "maximum", "timeline", "integer_layers", "dram_timing",
           "_shared", "code_aggregation", "attention", "ceilings")
# They take GCC longer to read than most kernels to compile.
INTRINSICS = """
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
"""


class BuildExtensions(build_ext):
    """Compiles on all cores, unless --parallel says otherwise; pip gives no options on.

    Cython's shells only pass arguments on: they are optimized little, which halves the time that they compile, and
    under sanitizers not at all, which halves it again.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        translate(self.extensions)
        compile_one = self.compiler._compile
        version = subprocess.run([*self.compiler.compiler, "--version"], capture_output=True, text=True).stdout
        of_compiler = [] if "clang" in version else GCC_ARGS
        lock, precompiled = threading.Lock(), []

        def compile_source(obj, source, extension, cc_args, extra_postargs, pp_opts):
            arguments = [*of_compiler, *extra_postargs]
            if Path(CYTHON_FOLDER) in Path(source).parents:
                arguments += SHELL_ARGS
            elif Path(source).stem not in UNROLLED:     # GCC takes over -O too from what was compiled before
                with lock:
                    if not precompiled:
                        precompiled.append(self.precompile(arguments) if of_compiler else [])
                arguments += precompiled[0]
            compile_one(obj, source, extension, cc_args, arguments, pp_opts)

        self.compiler._compile = compile_source
        super().build_extensions()
        shutil.rmtree(self.intrinsics, ignore_errors=True)      # 24 MB

    @property
    def intrinsics(self) -> Path:
        return Path(self.build_temp) / "intrinsics"

    def precompile(self, arguments: list[str]) -> list[str]:
        """Arguments with which the kernels that are compiled with these take the intrinsics as GCC has read them once;
        none where that fails, or a cache like ccache, which passes such sources by, stands before the compiler.
        """
        if "gcc" not in Path(shutil.which(self.compiler.compiler_so[0]) or "").resolve().name:
            return []
        header = self.intrinsics / "intrinsics.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(INTRINSICS)
        made = subprocess.run([*self.compiler.compiler_so, *arguments, str(header), "-o", f"{header}.gch"],
                              capture_output=True)
        return [] if made.returncode else ["-include", str(header)]


def level_args() -> list[str]:
    """Compiler's arguments for the SIMD levels that HPCGNN_LEVELS names."""
    names = LEVELS.replace(",", " ").split()
    if names == ["all"]:
        return []
    if not names or not set(names) <= set(LEVEL_BITS):
        sys.exit(f"hpcgnn: HPCGNN_LEVELS is {LEVELS!r}; expected all, or some of {', '.join(LEVEL_BITS)}")
    return [f"-DHPCGNN_BUILT={sum(LEVEL_BITS[name] for name in set(names))}"]


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
        extra_compile_args=COMPILE_ARGS + level_args() + (SANITIZE_ARGS if SANITIZE else UNROLLED.get(source.stem, [])),
        extra_link_args=LINK_ARGS,
    )


def place_in_queue(extension: Extension) -> int:
    """Key that sorts extensions by how long they compile."""
    name = extension.name.rpartition(".")[2]
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def find_extensions() -> list[Extension]:
    """All kernels, those first that compile for the longest, and what their shells share. Without kernels there is
    nothing to install: a build from an incomplete copy ends here.
    """
    sources = sorted(Path("ext").glob("*.pyx"))
    if not sources:
        sys.exit(f"hpcgnn: {Path('ext').resolve()} has no .pyx file, so the kernels can't be built; "
                 "take a complete copy of the sources, from the repository or an sdist")
    shared = Extension(SHARED, ["_shared.c"], extra_compile_args=COMPILE_ARGS + (SANITIZE_ARGS if SANITIZE else []),
                       extra_link_args=LINK_ARGS)
    return sorted([*map(build_extension, sources), shared], key=place_in_queue)


def translate(extensions: list[Extension]) -> None:
    """Put C in the place of Cython in the sources of each extension; only a build needs it, an sdist does not."""
    translated = cythonize(
        extensions,
        build_dir=CYTHON_FOLDER,
        nthreads=os.cpu_count(),
        shared_utility_qualified_name=SHARED,
        compiler_directives={"language_level": 3, "boundscheck": BOUNDS_CHECK, "wraparound": False,
                             "initializedcheck": False, "cdivision": True, "binding": False},
    )
    sources = {extension.name: extension.sources for extension in translated}
    for extension in extensions:
        extension.sources = sources[extension.name]


setup(
    cmdclass={"build_ext": BuildExtensions},
    packages=find_packages(include=["hpcgnn", "hpcgnn.*"]),
    include_package_data=False,     # else all files of MANIFEST.in would be
    # hpcgnn/registry.toml is a link into data/, so that it is found in a checkout and in an installed package alike.
    package_data={"hpcgnn": ["registry.toml", "py.typed"], "hpcgnn.ops.cuda": ["kernels/*.cu", "kernels/*.cuh"],
                  "hpcgnn.report": ["web/*"],
                  "hpcgnn.accelerators": [f"configurations/{folder}*.toml" for folder in ("", "dram/", "reference/")]},
    ext_modules=[] if KERNELS_IN_PLACE else find_extensions(),
)

"""Whether jobs/gpu_check.sh can run here: prints the GPU and what drives it, or one sentence on all that is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "cupy", "mpi4py", "numpy", "scipy", "click", "rich", "Cython", "setuptools", "pytest")
OLDEST_SETUPTOOLS = 77    # that reads pyproject.toml
SMALLEST_KERNEL = '#include <cuda_fp16.h>\nextern "C" __global__ void nothing(__half *x) {}\n'


def missing_packages() -> list[str]:
    """Packages that this Python does not find."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def lacks_of_building() -> Iterator[str]:
    """What the extension in C needs."""
    compiler = os.environ.get("CC", "cc").split()[0]
    if not (shutil.which(compiler) or shutil.which("gcc")):
        yield f"there is no C compiler ({compiler})"
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        yield f"{headers / 'Python.h'} is missing"
    if importlib.util.find_spec("setuptools") and int(version("setuptools").partition(".")[0]) < OLDEST_SETUPTOOLS:
        yield f"setuptools {version('setuptools')} is older than {OLDEST_SETUPTOOLS}"


def lacks_of_mpi() -> Iterator[str]:
    """mpi4py is a shell over a library that may not be there."""
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as reason:
        yield f"mpi4py finds no MPI library ({first_line(reason)})"


def lacks_of_cuda() -> Iterator[str]:
    """A device that torch sees, and a cupy that can compile for it."""
    import torch

    if not torch.cuda.is_available():
        yield f"torch {torch.__version__} finds no CUDA device"
        return
    try:
        import cupy

        cupy.RawModule(code=SMALLEST_KERNEL, options=("-std=c++17",)).get_function("nothing")
    except Exception as reason:    # cupy has many, of its own and of its libraries
        yield f"cupy can't compile a kernel ({first_line(reason)})"


def first_line(reason: Exception) -> str:
    """Of what an error says."""
    return str(reason).strip().partition("\n")[0]


def lacks() -> list[str]:
    """All that is missing, in words that end no sentence."""
    absent = missing_packages()
    found = [f"{sys.executable} has no {', '.join(absent)}"] if absent else []
    found += lacks_of_building()
    if "mpi4py" not in absent:
        found += lacks_of_mpi()
    if not {"torch", "cupy"} & set(absent):
        found += lacks_of_cuda()
    elif "torch" not in absent:
        import torch

        found += [] if torch.cuda.is_available() else [f"torch {torch.__version__} finds no CUDA device"]
    return found


def main() -> int:
    """0 where everything is there."""
    found = lacks()
    if found:
        print(f"gpu_check: can't run on this machine: {'; '.join(found)}", file=sys.stderr)
        return 1
    import cupy
    import torch

    chip = torch.cuda.get_device_properties(0)
    print(f"{chip.name}, compute capability {chip.major}.{chip.minor}, {chip.total_memory / 2**30:.0f} GiB, "
          f"torch {torch.__version__}, CUDA {torch.version.cuda}, cupy {cupy.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

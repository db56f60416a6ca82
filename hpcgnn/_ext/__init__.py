"""The compiled kernels, a module for each ext/NAME.pyx. An hpcgnn that lacks them, or was built for another Python or
for processors with more instructions, is refused here, before anything is read or written.
"""

from pathlib import Path

from hpcgnn.errors import KernelError

try:
    from hpcgnn._ext import simd as simd
except ImportError as error:
    raise KernelError(f"the compiled kernels of hpcgnn can't be loaded from {Path(__file__).parent}: {error}; "
                      "build them again from complete sources, with a C compiler: pip install --force-reinstall "
                      "--no-deps PATH-OF-THE-SOURCES") from error

if simd.supported_level() < 0:
    raise KernelError(f"the compiled kernels in {Path(__file__).parent} need instructions that this processor lacks; "
                      "build them for every processor: HPCGNN_LEVELS=all source jobs/env.sh, or install the package "
                      "without HPCGNN_LEVELS")

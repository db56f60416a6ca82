"""`python small_benchmarks.py bench ...` is `hpcgnn bench ...` with small work in place of what the program holds as
constants. It does not start anew: the caller's environment says how many threads there are.
"""

from __future__ import annotations

from functools import partial

from hpcgnn.__main__ import main
from hpcgnn.bench import bits, environment, host, kernels, packages

environment.run_in = lambda wanted: None
host.HostPlace = partial(host.HostPlace, num_rows=64, stream_bytes=1 << 20)
kernels.KernelBenchmark = partial(kernels.KernelBenchmark, width=9)
bits.BitsBenchmark = partial(bits.BitsBenchmark, sizes=(128,), dims=(32,), widths=(1, 3))
packages.PackageBenchmark = partial(packages.PackageBenchmark, num_rows=100, dim=20, widths=(4, packages.MIXED),
                                    densities=(0.5,))

if __name__ == "__main__":
    main()

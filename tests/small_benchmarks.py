"""`python small_benchmarks.py bench ...` is `hpcgnn bench ...`, and `dram ...` is jobs/measurements/dram.py, with small
work in place of what the program holds as constants. They do not start anew: the caller's environment says how many
threads there are.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from hpcgnn.__main__ import main
from hpcgnn.bench import bits, environment, host, kernels

environment.run_in = lambda *wanted: None
host.HostPlace = partial(host.HostPlace, num_rows=64, stream_bytes=1 << 20)
kernels.KernelBenchmark = partial(kernels.KernelBenchmark, width=9)
bits.BitsBenchmark = partial(bits.BitsBenchmark, sizes=(128,), dims=(32,), widths=(1, 3))

if __name__ == "__main__":
    if sys.argv[1] == "dram":
        sys.path.insert(0, str(Path(__file__).parents[1] / "jobs"))
        from measurements import dram

        dram.main(sys.argv[2:])
    main()

"""Benchmarks with small work in place of what the program holds as constants.

`python small_benchmarks.py bench ...` is `hpcgnn bench ...`; `bits ...`, `dram ...` are scripts of jobs/measurements.
They do not start anew: the caller's environment says how many threads there are. Trainings come from the tests' server,
and work of `bench epoch` beside them is done in this process.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fork_server import served

from hpcgnn.__main__ import main
from hpcgnn.bench import environment, epoch, kernels, place


@dataclass(frozen=True)
class SmallPlace(place.Place):
    num_rows: int = 64
    stream_bytes: int = 1 << 20


def make_small(replace=setattr) -> None:
    """Put small work in place of the program's; `replace` may be pytest's, which takes it back."""
    replace(environment, "run_in", lambda *wanted: None)
    replace(epoch, "call_in_child", lambda threads, *call: environment._call_work(*call))
    replace(epoch, "hpcgnn_command", lambda *arguments: served(["-m", "hpcgnn", *arguments]))
    replace(epoch, "thread_environment", lambda threads: dict(os.environ))
    replace(place, "Place", SmallPlace)
    replace(kernels, "KernelBenchmark", partial(kernels.KernelBenchmark, width=9))


if __name__ == "__main__":
    make_small()
    sys.path.insert(0, str(Path(__file__).parents[1] / "jobs"))
    if sys.argv[1] == "dram":
        from measurements import dram

        dram.main(sys.argv[2:])
    if sys.argv[1] == "bits":
        from measurements import bits

        bits.BitsBenchmark = partial(bits.BitsBenchmark, sizes=(128,), dims=(32,), widths=(1, 3))
        bits.command(sys.argv[2:])
    main()

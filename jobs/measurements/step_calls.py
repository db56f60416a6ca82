"""Count the Python calls of one training step, and the frames between a layer and the C function that sends its rows.

    hpcgnn preprocess synthetic:nodes=2000 --parts 2 --out shards
    mpirun -n 2 python jobs/measurements/step_calls.py shards [model=sage layers=2 method=uniform bits=4]

Rank 0 prints the calls of functions in hpcgnn/ and the number of their files in one step after three others, then the
calls of each file, then the longest way from a layer's `forward` to a C function of `hpcgnn._ext` or MPI.
"""

from __future__ import annotations

# hpcgnn.run.launch comes first, since it shares out the cores before torch starts its threads.
# isort: off
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from hpcgnn.run.launch import run_parallel

from mpi4py import MPI

import hpcgnn
from hpcgnn.cli.train import read_assignments
from hpcgnn.config import TrainConfig
from hpcgnn.training.learner import Learner
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch
# isort: on

ROOT = str(Path(hpcgnn.__file__).parent)
WARM_UP = 3
DEFAULTS = ("model=sage", "layers=2", "method=uniform", "bits=4")


class Calls:
    """Counts calls by function, and keeps the longest way to C."""

    def __init__(self):
        self.by_function: Counter[tuple[str, str]] = Counter()
        self.longest: list[str] = []

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            self.by_function[name[len(ROOT) + 1:], frame.f_code.co_qualname] += 1

    def reaches_c(self) -> None:
        way, frame = [], sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(ROOT):
                way.append(f"{name[len(ROOT) + 1:]}:{frame.f_code.co_qualname}")
                if name.endswith("nn/convolution.py") and frame.f_code.co_name == "forward":
                    self.longest = max(self.longest, way[::-1], key=len)
                    return
            frame = frame.f_back


class CountedComm(MPI.Intracomm):
    """Notes the ways to the sends and receives of MPI."""

    calls = Calls()

    def Isend(self, *arguments, **named):
        self.calls.reaches_c()
        return super().Isend(*arguments, **named)

    def Irecv(self, *arguments, **named):
        self.calls.reaches_c()
        return super().Irecv(*arguments, **named)


def count(comm: MPI.Comm, shards: Path, config: TrainConfig) -> Calls:
    """Collective: train epochs of one step each; return the calls of the last one."""
    comm, calls = CountedComm(comm), CountedComm.calls
    session = Session.open(comm, shards, config)
    learner, controller = Learner.start(session, config.seed, None), config.method.controller(session.method_context())
    for name in ("quantize_rows", "dequantize_rows"):
        watch(sys.modules["hpcgnn._ext.quantization"], name, calls)
    for epoch in range(WARM_UP + 1):
        session.exchange.begin_epoch(controller.plan(config.seed, epoch))
        calls.__init__()
        sys.setprofile(calls.note)
        train_epoch(session, learner, config.seed, epoch)
        sys.setprofile(None)
    return calls


def watch(module, name: str, calls: Calls) -> None:
    """Note each way to a C function of a module."""
    function = getattr(module, name)

    def noted(*arguments, **named):
        calls.reaches_c()
        return function(*arguments, **named)

    setattr(module, name, noted)


def main(comm: MPI.Comm) -> None:
    shards, *assignments = sys.argv[1:]
    config = TrainConfig.of(**{**read_assignments(DEFAULTS), **read_assignments(tuple(assignments))})
    calls = count(comm, Path(shards), config)
    if comm.rank:
        return
    files = Counter()
    for (file, _), number in calls.by_function.items():
        files[file] += number
    print(f"{sum(files.values())} Python calls in {len(files)} files, {len(calls.longest)} frames from a layer to C")
    for file, number in files.most_common():
        print(f"{number:5} {file}")
        for (where, name), times in calls.by_function.most_common():
            if where == file:
                print(f"        {times:5} {name}")
    print(*calls.longest, sep="\n  ")


if __name__ == "__main__":
    sys.exit(run_parallel(main))

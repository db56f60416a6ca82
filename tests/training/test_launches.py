"""What a step asks a GPU to start, and how often the host waits for it, counted without one and bounded.

`python tests/training/test_launches.py` prints the table of data/benchmarks/device.md. A GPU takes a few microseconds
to start whatever is counted here, and the host about ten: on a small graph that is an epoch's time.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from covering import long_but
from cuda.conftest import need_compiler
from cuda.separate_memory import separate_memory
from mpi4py import MPI
from stand_in_device import WatchedComm
from training_setup import easy_graph, train, write_once

GRAPH = "synthetic:nodes=200,mean_degree=6,classes=5,features=16,signal=2"
SHAPE = {"hidden": 32, "layers": 3, "heads": 4, "eval_every": 100, "checkpoint_every": 0}
SHORT, MORE = 2, 1      # epochs of a first training, and how many more a second one has
BOUNDS = {("sage", "fp32"): 60, ("sage", "bf16"): 70, ("gcn", "fp32"): 50, ("gcn", "bf16"): 55, ("gin", "fp32"): 108,
          ("gat", "fp32"): 105}      # most starts of a step
WAITS_AN_EPOCH = 2      # for the losses and the checks of all its steps


def started(shards: Path, epochs: int, settings: dict) -> list[Counter]:
    """Collective: operations of torch, kernels of hpcgnn, and waits of a whole training on the device."""
    with tempfile.TemporaryDirectory() as own, separate_memory() as device:
        folder = MPI.COMM_WORLD.bcast(own)
        train(WatchedComm(MPI.COMM_WORLD, device.streams), shards, Path(folder) / "run", device="cuda", epochs=epochs,
              **{**SHAPE, **settings})
        return [device.operations, Counter(name for name, _, _ in device.backend.launches), device.waits]


def of_an_epoch(shards: Path, settings: dict) -> list[Counter]:
    """Collective: what an epoch adds, once all that is made once has been made."""
    fewer, more = (started(shards, epochs, settings) for epochs in (SHORT, SHORT + MORE))
    return [Counter({one: (count - before[one]) / MORE for one, count in after.items() if count != before[one]})
            for before, after in zip(fewer, more, strict=True)]


@pytest.fixture
def shards(shared_path):
    need_compiler()
    return write_once(MPI.COMM_WORLD, easy_graph(spec=GRAPH), shared_path / "shards")


@pytest.mark.parametrize("model, precision", long_but((0, 3, 5), BOUNDS))
def test_a_step_starts_few_kernels_and_waits_for_none(shards, model, precision):
    operations, kernels, waits = of_an_epoch(shards, {"model": model, "precision": precision})
    assert operations.total() + kernels.total() <= BOUNDS[model, precision], (operations, kernels)
    assert waits.total() <= WAITS_AN_EPOCH, waits
    assert kernels["adam_step"] == kernels["loss_rows_" + {"bf16": "bf16"}.get(precision, "f32")] == 1


def test_waits_do_not_grow_with_the_steps(shards):
    few, many = (of_an_epoch(shards, {"model": "sage", "steps": f"rows:{steps}"})[2] for steps in (2, 4))
    assert few.total() == many.total() <= WAITS_AN_EPOCH, (few, many)


def main() -> None:
    """Print a row for each model, precision and number of steps."""
    comm = MPI.COMM_WORLD
    with tempfile.TemporaryDirectory() as own:
        shards = write_once(comm, easy_graph(spec=GRAPH), Path(comm.bcast(own)) / "shards")
        rows = []
        for model in ("sage", "gcn", "gin", "gat"):
            for precision in ("fp32", "bf16"):
                for steps in ("1", "rows:40"):
                    counts = of_an_epoch(shards, {"model": model, "precision": precision, "steps": steps})
                    operations, kernels, waits = (count.total() for count in counts)
                    number = 40 if steps != "1" else 1
                    rows.append(f"| {model} | {precision} | {number} | {operations / number:.0f} | "
                                f"{kernels / number:.0f} | {waits:.0f} |")
        if comm.rank == 0:
            print("| model | precision | steps | torch's, a step | kernels, a step | waits, an epoch |",
                  "|---|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    sys.exit(main())

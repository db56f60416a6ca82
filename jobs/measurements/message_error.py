"""Show what rows and gradients lose in messages: rotated codes beside affine ones.

    python jobs/measurements/message_error.py
    mpirun -n 4 python jobs/measurements/message_error.py shards/graph-p4 model=gcn layers=3 hidden=64 epochs=200

Prints a Markdown table of squared error over squared norm, by code and bit-width. The first command rounds drawn rows
of several kinds. The second one trains, with settings of `hpcgnn train`, and rounds the rows that all ranks send in the
epochs OBSERVED and the last one, by exchange; the training itself sends rows unrounded.
"""

from __future__ import annotations

# hpcgnn.run.launch comes first, since it shares out the cores before torch starts its threads.
# isort: off
import sys
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.run.launch import run_parallel

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.cli.train import read_assignments
from hpcgnn.config import TrainConfig
from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.kinds import Fresh
from hpcgnn.exchange.bits import EpochPlan
from hpcgnn.exchange.sender import Outgoing, Place, Sender
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.methods.stored import Vanilla
from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows
from hpcgnn.training.learner import Learner
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch

sys.path.append(str(Path(__file__).resolve().parents[1]))
from score_table import print_table
# isort: on

NUM_ROWS, WIDTH = 1000, 256     # of drawn rows
DEGREES_OF_FREEDOM = 3          # of Student's t, which then has an infinite fourth moment
OBSERVED, WIDTHS, CODES = (1, 20), (1, 2, 4), ("affine", "rotated")
SEEN: dict[Place, torch.Tensor] = {}      # rows that this rank sent in the newest epoch


class SeenRows(Fresh):
    """Remembers the rows that are sent."""

    def begin_epoch(self, plan: EpochPlan) -> None:
        super().begin_epoch(plan)
        SEEN.clear()

    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        index = torch.from_numpy(outgoing.messages.send_index).long()
        SEEN[outgoing.place] = outgoing.rows.detach()[index].float()
        return super().start(sender, outgoing, site)


@dataclass(frozen=True)
class Seen(Vanilla):
    """Trains as vanilla and remembers the rows that are sent."""

    name = "seen"

    def exchange(self) -> SeenRows:
        return SeenRows()


def errors_of(comm: MPI.Comm, rows: torch.Tensor) -> list[str]:
    """Collective: errors of the rows of all ranks, by code and width."""
    sums = [squared_sums(rows, bits, code) for code in CODES for bits in WIDTHS]
    totals = comm.allreduce(np.array(sums))
    return [f"{error / norm:.2g}" if norm else "-" for error, norm in totals]


def rows_by_kind(width: int) -> dict[str, np.ndarray]:
    """Draw (NUM_ROWS, width) float32 rows by name: normal, heavy-tailed, and normal ones after a ReLU."""
    rng, shape = np.random.default_rng(0), (NUM_ROWS, width)
    normal = rng.normal(size=shape)
    rows = {"normal": normal, "heavy-tailed": rng.standard_t(DEGREES_OF_FREEDOM, size=shape),
            "rectified": np.maximum(normal, 0)}
    return {kind: values.astype(np.float32) for kind, values in rows.items()}


def squared_sums(rows: torch.Tensor, bits: int, code: str) -> tuple[float, float]:
    """Squared error of (n, width) float32 rows after rounding, and their squared norm."""
    num_rows, width = rows.shape
    layout = MessageLayout.build(np.full(num_rows, bits, np.uint8), width, code)
    index, message = np.arange(num_rows, dtype=np.int32), np.empty(layout.num_bytes, np.uint8)
    received, key = torch.empty_like(rows), CounterKey(0, 0, FORWARD, 0)
    quantize_rows(rows, index, np.arange(num_rows), layout, key, message)
    dequantize_rows(message, index, np.arange(num_rows), layout, received, key=key)
    return float((received - rows).double().square().sum()), float(rows.double().square().sum())


def squared_errors(width: int, bits: int, code: str) -> dict[str, float]:
    """Squared error over squared norm of the rows of `rows_by_kind`."""
    sums = {kind: squared_sums(torch.from_numpy(rows), bits, code) for kind, rows in rows_by_kind(width).items()}
    return {kind: error / norm for kind, (error, norm) in sums.items()}


def show_drawn_rows() -> None:
    errors = [(code, bits, squared_errors(WIDTH, bits, code)) for code in CODES for bits in WIDTHS]
    lines = [(f"{code}, {bits}", *(f"{error:.2g}" for error in found.values())) for code, bits, found in errors]
    print_table(("code, bits", *rows_by_kind(1)), lines)


def show_training(comm: MPI.Comm) -> None:
    """Collective: train; rank 0 prints the table."""
    settings = read_assignments(tuple(sys.argv[2:]))
    session = Session.open(comm, Path(sys.argv[1]), TrainConfig.of(**settings, method="__main__:Seen"))
    learner, lines = Learner.start(session, session.config.seed, None), []
    controller = session.config.method.controller(session.method_context())
    for epoch in range(session.config.epochs):
        session.exchange.begin_epoch(controller.plan(session.config.seed, epoch))
        trace = train_epoch(session, learner, session.config.seed, epoch)
        controller.observe(trace.loss, trace.epoch_seconds, session.exchange.traces())
        if epoch + 1 in (*OBSERVED, session.config.epochs):
            for place in sorted(set().union(*comm.allgather(list(SEEN)))):
                layer, purpose, dim = place
                rows = SEEN.get(place, torch.empty(0, dim))
                what = "gradients" if purpose == BACKWARD else "rows"
                lines.append((str(epoch + 1), f"{layer}, {what}", str(dim), *errors_of(comm, rows)))
    if comm.rank == 0:
        print_table(("epoch", "layer", "columns", *(f"{code}, {bits}" for code in CODES for bits in WIDTHS)), lines)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        show_drawn_rows()
    else:
        run_parallel(show_training)

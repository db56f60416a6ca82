"""Show what rows and gradients of a real training lose in messages: rotated codes beside affine ones.

    mpirun -n 4 python jobs/message_error.py shards/graph-p4 model=gcn layers=3 hidden=64 epochs=200

Settings are those of `hpcgnn train`. Prints a Markdown table: squared error over squared norm of the rows that all
ranks send, in the epochs OBSERVED and the last one, by exchange. The training itself sends rows as they are.
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
from score_table import print_table

from hpcgnn.bench.message_error import squared_sums
from hpcgnn.cli.train import read_assignments
from hpcgnn.config import TrainConfig
from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.kinds import Fresh
from hpcgnn.exchange.bits import EpochPlan
from hpcgnn.exchange.sender import Outgoing, Place, Sender
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.methods.vanilla import Vanilla
from hpcgnn.ops.counter import BACKWARD
from hpcgnn.training.learner import Learner
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch
# isort: on

OBSERVED, WIDTHS, CODES = (1, 20), (1, 2, 4), ("affine", "rotated")
SEEN: dict[Place, torch.Tensor] = {}      # rows that this rank sent in the newest epoch


class SeenRows(Fresh):
    """Remember the rows that leave."""

    def begin_epoch(self, plan: EpochPlan) -> None:
        """See `ExchangeKind`."""
        super().begin_epoch(plan)
        SEEN.clear()

    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        """See `ExchangeKind`."""
        index = torch.from_numpy(outgoing.messages.send_index).long()
        SEEN[outgoing.place] = outgoing.rows.detach()[index].float()
        return super().start(sender, outgoing, site)


@dataclass(frozen=True)
class Seen(Vanilla):
    """Train as vanilla, and remember the rows that leave."""

    name = "seen"

    def exchange(self) -> SeenRows:
        """See `Method`."""
        return SeenRows()


def errors_of(comm: MPI.Comm, rows: torch.Tensor) -> list[str]:
    """Collective: squared error over squared norm of the rows of all ranks, by code and width."""
    sums = [squared_sums(rows, bits, code) for code in CODES for bits in WIDTHS]
    totals = comm.allreduce(np.array(sums))
    return [f"{error / norm:.2g}" if norm else "-" for error, norm in totals]


def main(comm: MPI.Comm) -> None:
    """Train, and have rank 0 print the table."""
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
    run_parallel(main)

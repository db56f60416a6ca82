"""End all ranks together on a stop signal that came before the first epoch; later signals wait for an epoch's end."""

from __future__ import annotations

from mpi4py import MPI

from hpcgnn.errors import Interrupted
from hpcgnn.stop_signals import STOP_REQUEST


def end_if_asked(comm: MPI.Comm) -> None:
    """Collective: end on all ranks where any was asked to stop.

    Raises
    ------
    Interrupted      nothing was begun, so nothing is lost
    """
    if comm.allreduce(STOP_REQUEST.signal_number, MPI.MAX):
        raise Interrupted("stopped by a signal before the first epoch; nothing is lost, the same command with --resume "
                          "goes on")

"""Swaps: arrays between a rank and its peers, once in a while, of lengths that both sides know.

What they are for is not known here; rows travel by transfers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from hpcgnn.exchange.delivery import pieces

SWAP_TAG = 32000    # no exchange has it


def swap(comm: MPI.Comm, peers: Sequence[int], sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> None:
    """Collective: send an array to each peer and fill one from each. Those to oneself, and empty ones, cost nothing.

    Parameters
    ----------
    peers : ranks, this one perhaps among them
    sent, received : arrays, contiguous, one a peer; two ranks that are peers of each other know both lengths
    """
    requests = []
    for buffers, post in ((received, comm.Irecv), (sent, comm.Isend)):
        for peer, buffer in zip(peers, buffers, strict=True):
            if peer != comm.rank:
                requests += [post([piece, MPI.BYTE], peer, SWAP_TAG) for piece in pieces(buffer.view(np.uint8))]
    MPI.Request.Waitall(requests)


def swap_rows(comm: MPI.Comm, peers: Sequence[int], sent: np.ndarray) -> np.ndarray:
    """Collective: send a row to each peer; return the row that came from each, those from oneself as they are.

    Parameters
    ----------
    sent : (num_peers,) or (num_peers, num_columns) array, contiguous
    """
    received = sent.copy()
    swap(comm, peers, list(sent.reshape(len(peers), -1)), list(received.reshape(len(peers), -1)))
    return received

"""Swaps arrays between a rank and its peers, such as degrees at the start; both ranks of a pair know the lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from hpcgnn.exchange.transfer import pieces

SWAP_TAG = 32000    # no exchange has this tag


def swap(comm: MPI.Comm, peers: Sequence[int], sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> None:
    """Collective: send an array to each peer and fill one from each. Empty arrays and arrays to oneself cost nothing.

    `sent` and `received` are contiguous arrays, one per peer; this rank may be a peer.
    """
    requests = []
    for buffers, post in ((received, comm.Irecv), (sent, comm.Isend)):
        for peer, buffer in zip(peers, buffers, strict=True):
            if peer != comm.rank:
                requests += [post([piece, MPI.BYTE], peer, SWAP_TAG) for piece in pieces(buffer.view(np.uint8))]
    MPI.Request.Waitall(requests)


def swap_rows(comm: MPI.Comm, peers: Sequence[int], sent: np.ndarray) -> np.ndarray:
    """Collective: send one row of (num_peers, ...) `sent` to each peer; return what arrived, its own row unchanged."""
    received = sent.copy()
    swap(comm, peers, list(sent.reshape(len(peers), -1)), list(received.reshape(len(peers), -1)))
    return received
